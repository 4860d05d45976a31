"""Bytes on the device, counted in storages: between forward and backward, and at each layer's turn."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from hyper_parallel_tests.domains.activation_swap.networks import INNER, ROWS, WIDTH, chain, swap_layers
from hyper_parallel_tests.domains.activation_swap.setting import given
from hyper_parallel_tests.harness import contract, trace

STREAM, HIDDEN = trace.size_of(ROWS, WIDTH), trace.size_of(ROWS, INNER)
DEPTH = 4

# A layer saves its input and two hidden tensors; the first one's input is the user's, and the output is not saved.
FIRST, LAYER, OUTPUT = 2 * HIDDEN, STREAM + 2 * HIDDEN, STREAM
WHOLE = FIRST + (DEPTH - 1) * LAYER + OUTPUT
SWAPPED = {
    "none": ([], 0),
    "first": ([0], FIRST),
    "second": ([1], LAYER),
    "all_but_first": ([1, 2, 3], 2 * LAYER),
    "all": ([0, 1, 2, 3], FIRST + 2 * LAYER),
    # It is needed at once.
    "last": ([3], 0),
}


def forward(engine: Any, model: nn.Module, inputs: Tensor) -> tuple[Tensor, int, int]:
    """The output, bytes on the device that it leaves, and bytes that went to the host."""
    with engine.watch_swap_copies() as copies, trace.made(inputs.device) as made:
        output = model(inputs)
    return output, made.held(), sum(size for _, size in copies)


@contract("SW-2-02")
@pytest.mark.parametrize(("only", "less"), SWAPPED.values(), ids=SWAPPED)
def test_bytes_between(engine, world, only, less):
    """Between forward and backward what swapped layers save is gone from the device, but for the last one's."""
    model = chain(world.device, depth=DEPTH)
    swap_layers(engine, model.layers, only)
    for seed in range(2):
        output, held, copied = forward(engine, model, given(world, seed=seed))
        assert held == WHOLE - less
        # The first layer's input goes too, and stays on the device for its user.
        assert copied == less + (STREAM if 0 in only else 0)
        output.sum().backward()


@contract("SW-2-02")
def test_shared_storage_leaves_with_its_last_layer(engine, world):
    """An output that two layers save leaves behind the second of them; the last layer's input stays."""
    model = chain(world.device, depth=DEPTH, last="tanh")
    swap_layers(engine, model.layers)
    output, held, _ = forward(engine, model, given(world))
    assert held == STREAM + 2 * HIDDEN + STREAM
    output.sum().backward()


@contract("SW-2-02")
def test_nothing_left_behind(engine, world):
    """After backward the device holds the output and nothing else of what was computed."""
    model = chain(world.device, depth=DEPTH)
    swap_layers(engine, model.layers)
    inputs = given(world)
    for one in (inputs, *model.parameters()):
        one.grad = one.detach().clone()
    with engine.watch_swap_copies() as copies, trace.made(inputs.device) as made:
        output = model(inputs)
        output.sum().backward()
    assert len(copies) == 2 * 3 * (DEPTH - 1)
    assert made.held() == OUTPUT
    assert output.shape == (ROWS, WIDTH)


def heights(model: nn.Module, layers: list[nn.Module], inputs: Tensor) -> list[int]:
    """Bytes on the device when each layer's backward begins, the first layer's first. Gradients are there before."""
    for one in (inputs, *model.parameters()):
        one.grad = one.detach().clone()
    held: list[int] = []
    handles = [layer.register_full_backward_pre_hook(lambda *_: held.append(made.held())) for layer in layers]
    with trace.made(inputs.device) as made:
        model(inputs).sum().backward()
    for handle in handles:
        handle.remove()
    return held[::-1]


def difference(engine: Any, world: Any, only: tuple[int, ...]) -> list[int]:
    """By how much swap makes these bytes less."""
    inputs = given(world)
    plain, model = chain(world.device, depth=DEPTH), chain(world.device, depth=DEPTH)
    layers = swap_layers(engine, model.layers, only)
    with engine.watch_swap_copies():
        found = heights(model, layers, inputs)
    return [ours - theirs for ours, theirs in zip(heights(plain, list(plain.layers), inputs), found, strict=True)]


@contract("SW-2-02")
def test_bytes_at_each_turn(engine, world):
    """In backward a layer's own bytes are there and those of the layer before it, and no others'."""
    # The user holds the first layer's input, so that what is loaded of it comes on top.
    assert difference(engine, world, (0, 1, 2, 3)) == [-STREAM, -STREAM, FIRST, FIRST + LAYER]


@contract("SW-2-02")
@pytest.mark.parametrize(
    ("budget", "expected"),
    [(WHOLE, ()), (WHOLE - FIRST, (0,)), (WHOLE - FIRST - 1, (0, 1))],
    ids=["fits", "first", "two"],
)
def test_generated_policy(engine, world, budget, expected):
    """A generated policy makes the height of a step less by what it promises."""
    sizes = [FIRST, LAYER, LAYER, LAYER + OUTPUT]
    names = [f"layers.{number}" for number in range(DEPTH)]
    found = engine.generate_swap_policy(dict(zip(names, sizes, strict=True)), budget)
    assert found == tuple(names[number] for number in expected)
    less = difference(engine, world, expected)
    assert less[-1] == sum(sizes[number] for number in expected)
    assert WHOLE - less[-1] <= budget
