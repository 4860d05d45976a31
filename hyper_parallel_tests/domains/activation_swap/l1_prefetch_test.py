"""When groups move, beside what, and what is held after their last use."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.activation_swap.networks import chain, in_order, steps_of, swap_layers
from hyper_parallel_tests.domains.activation_swap.setting import Call, given, gradients, packing, turn_of
from hyper_parallel_tests.harness import assert_equal, contract


def step(model: nn.Module, world: Any, seed: int = 0) -> Tensor:
    """A forward and a backward; gives the output."""
    output = model(given(world, seed=seed))
    output.sum().backward()
    return output


@contract("SW-1-02")
@pytest.mark.parametrize("layers", [2, 3, 5])
def test_moves_start_at_the_hooks(engine, world, layers):
    """A layer's load starts before the backward of the one behind it, is awaited before its own, each step alike."""
    model = chain(world.device, depth=layers)
    ordered = swap_layers(engine, model.layers)
    for seed in range(2):
        with steps_of(engine.SwapManager(), ordered) as steps:
            step(model, world, seed)
        assert steps == in_order(layers)


@contract("SW-1-02")
def test_order_twice_is_order_once(engine, world):
    """Layers that are ordered again move once at each hook."""
    model = chain(world.device, depth=3)
    ordered = swap_layers(engine, model.layers)
    manager = engine.SwapManager()
    for first, second in zip(ordered, ordered[1:], strict=False):
        manager.set_forward_prefetch_layer(first, second)
    with steps_of(manager, ordered) as steps:
        step(model, world)
    assert steps == in_order(3)


@contract("SW-1-02")
def test_evaluation_moves_nothing(engine, world):
    """Without gradients there is nothing to move, and nobody's turn is left over."""
    model = chain(world.device, depth=3)
    swap_layers(engine, model.layers)
    manager = engine.SwapManager()
    before = manager.get_current_group_name()
    with engine.watch_swap_copies() as copies, torch.no_grad():
        model(given(world))
    assert copies == []
    assert manager.get_current_group_name() == before


@contract("SW-1-02")
def test_turn_ends_with_the_layer(engine, world):
    """Behind a layer it is again the turn of the group before it, so that what follows is not in the layer's group."""
    model = chain(world.device, depth=2)
    swap_layers(engine, model.layers)
    manager = engine.SwapManager()
    with turn_of(manager) as group:
        output = model(given(world))
        assert manager.get_current_group_name() == group
    output.sum().backward()


@contract("SW-1-02")
def test_copies_beside_the_computation(engine, world):
    """A launch returns before its copies are done; a wait returns after."""
    manager = engine.SwapManager()
    inputs = given(world)
    expected = gradients(inputs.exp(), inputs)
    with engine.watch_swap_copies(held=True) as copies:
        with turn_of(manager) as group:
            output = engine.swap_wrapper(Call(torch.exp))(inputs)
        done = []
        for move in (manager.launch_offload, manager.wait_offload, manager.launch_load, manager.wait_load):
            move(group)
            done.append([direction for direction, _ in copies])
    assert done == [[], ["offload"], ["offload"], ["offload", "load"]]
    assert_equal(gradients(output, inputs), expected, what="values")


@contract("SW-1-02")
@pytest.mark.parametrize("last", ["none", "tanh", "residual"])
def test_late_copies(engine, world, last):
    """Copies that are as late as they may be change no value: each is awaited before what it brings is used."""
    plain, model = chain(world.device, last=last), chain(world.device, last=last)
    inputs = given(world)
    expected = gradients(plain(inputs), inputs, module=plain)
    swap_layers(engine, model.layers)
    with engine.watch_swap_copies(held=True):
        found = gradients(model(inputs), inputs, module=model)
    assert_equal(dict(zip(expected, found.values(), strict=True)), expected, what="values")


@contract("SW-1-02")
def test_wait_without_launch(engine, world):
    """A wait for a load that nobody has launched brings the group back, also in the middle of its offload."""
    manager = engine.SwapManager()
    expected = gradients((inputs := given(world)).exp(), inputs)
    for moves in (["launch_offload", "wait_offload"], ["launch_offload"], []):
        with turn_of(manager) as group:
            output = engine.swap_wrapper(Call(torch.exp))(inputs)
        for move in moves:
            getattr(manager, move)(group)
        manager.wait_load(group)
        assert_equal(gradients(output, inputs), expected, what="values")


@contract("SW-1-02")
@pytest.mark.parametrize("move", ["offload", "load"])
def test_failed_copy(engine, world, move):
    """A copy that fails ends the wait for it with an error, and what was saved can be moved again."""
    manager = engine.SwapManager()
    inputs = given(world)
    expected = gradients(inputs.exp(), inputs)
    with turn_of(manager) as group:
        output = engine.swap_wrapper(Call(torch.exp))(inputs)
    if move == "load":
        manager.launch_offload(group)
        manager.wait_offload(group)
    launch, wait = getattr(manager, f"launch_{move}"), getattr(manager, f"wait_{move}")
    no_room = mock.patch.object(torch.Tensor, "copy_", side_effect=RuntimeError("no room"))
    with engine.watch_swap_copies() as copies, no_room:
        launch(group)
        with pytest.raises(RuntimeError, match=f"{move} of swapped tensors failed: no room"):
            wait(group)
    assert copies == []
    launch(group)
    wait(group)
    manager.wait_load(group)
    assert_equal(gradients(output, inputs), expected, what="values")


@contract("SW-1-02")
def test_freed_in_forward(engine, world):
    """Two layers on, nothing of what a layer saved is on the device."""
    model = chain(world.device, depth=5)
    held: list[list[int]] = []
    ends: list[int] = []
    for layer in swap_layers(engine, model.layers):

        def begin(*_: Any) -> None:
            # What the layer before this one saved may be on its way.
            behind = ends[-2] if len(ends) > 1 else 0
            held.append([number for number in seen.held(inputs, *model.parameters()) if number < behind])

        layer.register_forward_pre_hook(begin)
        layer.register_forward_hook(lambda *_: ends.append(len(seen.packed)))
    with engine.watch_swap_copies() as copies, packing() as seen:
        output = model(inputs := given(world))
    assert len(copies) == 4 * 3
    assert held == [[]] * 5
    output.sum().backward()


@contract("SW-1-02")
@pytest.mark.parametrize("fused", [False, True], ids=["single", "fused"])
def test_released_after_last_use(engine, world, fused):
    """Whenever a layer's backward begins, nothing is held of what the layers behind it have used."""
    model = chain(world.device)
    held: list[list[int]] = []

    def begin(*_: Any) -> None:
        held.append([number for number in seen.held(*model.parameters()) if number in seen.storages])

    for layer in swap_layers(engine, model.layers):
        layer.register_full_backward_pre_hook(begin)
    with engine.set_swap_fusion(fused), packing() as seen:
        output = model(given(world))
        output.sum().backward()
    assert len(seen.storages) == len(seen.packed)
    assert held == [[]] * 4


@contract("SW-1-02")
@pytest.mark.parametrize("last", ["none", "tanh"])
@pytest.mark.parametrize("end", ["backward", "two_backwards", "dropped", "failed"])
def test_nothing_is_kept(engine, world, end, last):
    """After backward, after the last of two, and when the graph is dropped, no storage is held, nor after an error."""
    model = chain(world.device, last=last)
    swap_layers(engine, model.layers)
    if end == "failed":
        model.layers[1].register_full_backward_pre_hook(fail)
    with packing() as seen:
        output = model(given(world))
        if end == "two_backwards":
            output.sum().backward(retain_graph=True)
        if end == "failed":
            with pytest.raises(ZeroDivisionError):
                output.sum().backward()
        elif end != "dropped":
            output.sum().backward()
        del output
    assert seen.packed
    assert seen.held(*model.parameters()) == []


@contract("SW-1-02")
def test_two_backwards(engine, world):
    """As long as the graph is retained, what was loaded stays for the next backward."""
    plain, model = chain(world.device), chain(world.device)
    swap_layers(engine, model.layers)
    inputs = given(world)
    expected = gradients(plain(inputs), inputs)
    output = model(inputs)
    output.sum().backward(retain_graph=True)
    assert_equal(gradients(output, inputs), expected, what="values")


def fail(*_: Any) -> None:
    raise ZeroDivisionError
