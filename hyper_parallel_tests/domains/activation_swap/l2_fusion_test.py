"""Copies of whole groups, and policies that choose tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.domains.activation_swap.networks import INNER, ROWS, WIDTH, chain, swap_layers
from hyper_parallel_tests.domains.activation_swap.setting import (
    Call,
    given,
    gradients,
    packing,
    there_and_back,
    turn_of,
)
from hyper_parallel_tests.harness import assert_equal, contract, trace

STREAM, HIDDEN = trace.size_of(ROWS, WIDTH), trace.size_of(ROWS, INNER)


def mixed(inputs: Tensor) -> Tensor:
    """Saves tensors of several dtypes, of sizes that fill no whole words, one of which is viewed."""
    half = (inputs[:1, :3].bfloat16() * 2).cos().float().sum()
    # The largest elements that there are, right behind six bytes.
    half = half + torch.view_as_complex(inputs[:, :2].double() * 2).square().real.float().sum()
    double = (inputs[1:, 1:4].double() * 2).cos().float().sum()
    chosen = inputs.masked_fill(inputs > 0, 0.5).exp()
    return chosen.t().cos() * half + chosen[:, ::2].cos().sum() * double


@contract("SW-2-03")
@pytest.mark.parametrize("last", ["none", "tanh", "residual"])
def test_fused_copies_of_a_network(engine, world, last):
    """Gradients by fused copies are those by single ones, with one copy a group there and one back."""
    found, counts = {}, {}
    for fused in (False, True):
        model = chain(world.device, last=last)
        inputs = given(world)
        swap_layers(engine, model.layers)
        with engine.set_swap_fusion(fused), engine.watch_swap_copies() as copies:
            found[fused] = gradients(model(inputs), inputs, module=model)
        counts[fused] = [[size for way, size in copies if way == move] for move in ("offload", "load")]
    assert_equal(found[True], found[False], what="values")
    offloads, loads = counts[True]
    assert len(offloads) == 3
    assert sum(offloads) == sum(counts[False][0])
    assert len(counts[False][0]) > 3
    # What two groups save is in the buffer of the first and comes back with the second, by a copy of its own.
    assert len(loads) == (3 if last != "tanh" else 5)
    assert sum(loads) == sum(counts[False][1])


@contract("SW-2-03")
def test_fused_copies_of_mixed_tensors(engine, world):
    """So are those of tensors of several dtypes and odd sizes, and the tensors have their strides and offsets again."""
    expected = gradients(mixed(inputs := given(world)), inputs)
    manager = engine.SwapManager()
    with engine.set_swap_fusion(True), engine.watch_swap_copies() as copies, packing() as seen:
        with turn_of(manager) as group:
            output = engine.swap_wrapper(Call(mixed))(inputs)
        there_and_back(manager, group)
        found = gradients(output, inputs)
    assert [direction for direction, _ in copies] == ["offload", "load"]
    assert_equal(found, expected, what="values")
    used = {number: seen.packed[number] for number in seen.unpacked}
    assert_equal(seen.values(seen.unpacked), seen.values(used), what="saved tensor")
    assert {n: (one["strides"], one["dtype"]) for n, one in seen.unpacked.items()} == {
        n: (one["strides"], one["dtype"]) for n, one in used.items()
    }


@contract("SW-2-03")
def test_fusion_ends_with_its_context(engine, world):
    """Behind a context it is as before it: within another one copies are fused, and single after an error in it."""
    manager = engine.SwapManager()

    def count() -> int:
        with engine.watch_swap_copies() as copies:
            with turn_of(manager) as group:
                output = engine.swap_wrapper(Call(mixed))(inputs := given(world))
            there_and_back(manager, group)
        gradients(output, inputs)
        return len(copies)

    single = count()
    assert single > 2
    with engine.set_swap_fusion(True):
        with engine.set_swap_fusion(False):
            assert count() == single
        assert count() == 2
    with pytest.raises(ZeroDivisionError), engine.set_swap_fusion(True):
        raise ZeroDivisionError
    assert count() == single


CHOICES = {
    "hidden": (lambda one: one.shape[-1] == INNER, 2),
    "stream": (lambda one: one.shape[-1] == WIDTH, 1),
    "large": (lambda one: one.nbytes >= HIDDEN, 2),
    "all": (lambda one: True, 3),
    "none": (lambda one: False, 0),
}


@contract("SW-2-03")
@pytest.mark.parametrize(("chosen", "per_layer"), CHOICES.values(), ids=CHOICES)
def test_chosen_tensors(engine, world, chosen, per_layer):
    """Exactly the tensors that a policy chooses go and come back; the others stay, and values are the same."""
    policy = engine.ActivationPolicy
    sizes: list[int] = []

    def choose(tensor: Tensor) -> Any:
        if chosen(tensor):
            sizes.append(tensor.nbytes)
            return policy.SWAP
        return policy.SAVE

    plain, model = chain(world.device, depth=3), chain(world.device, depth=3)
    inputs = given(world)
    expected = gradients(plain(inputs), inputs, module=plain)
    swap_layers(engine, model.layers, policy_fn=choose)
    with engine.watch_swap_copies() as copies, trace.made(inputs.device) as made:
        output = model(inputs)
        held = made.held()
    with engine.watch_swap_copies() as back:
        found = gradients(output, inputs, module=model)
    assert_equal(found, expected, what="values")
    # The last layer's stay whatever was chosen.
    assert len(sizes) == 3 * per_layer
    # Two groups are on their way at once.
    assert sorted(copies) == sorted(("offload", size) for size in sizes[: 2 * per_layer])
    assert sorted(back) == sorted(("load", size) for size in sizes[: 2 * per_layer])
    # Of what goes, the first layer's input is the user's.
    gone = sum(sizes[: 2 * per_layer]) - (STREAM if chosen(inputs) else 0)
    assert held == 3 * (2 * HIDDEN + STREAM) - gone


@contract("SW-2-03")
def test_chosen_tensors_are_asked_for_once(engine, world):
    """A policy is asked once for each tensor that may be swapped, in the order of saving."""
    asked: list[tuple[int, ...]] = []

    def choose(tensor: Tensor) -> Any:
        asked.append(tuple(tensor.shape))
        return engine.ActivationPolicy.SAVE

    model = chain(world.device, depth=2)
    swap_layers(engine, model.layers, policy_fn=choose)
    model(given(world)).sum().backward()
    assert asked == [(ROWS, WIDTH), (ROWS, INNER), (ROWS, INNER)] * 2


@contract("SW-2-03")
def test_what_is_not_chosen_is_the_same_memory(engine, world):
    """A tensor that is not chosen comes back as the memory that was saved, a chosen one as other memory."""
    manager = engine.SwapManager()

    def choose(tensor: Tensor) -> Any:
        return engine.ActivationPolicy.SWAP if tensor.dtype is torch.float64 else engine.ActivationPolicy.SAVE

    def function(x: Tensor) -> Tensor:
        return ((x * 2).cos().double() * 2).cos()

    with engine.watch_swap_copies() as copies, packing() as seen:
        with turn_of(manager) as group:
            output = engine.swap_wrapper(Call(function), choose)(inputs := given(world))
        there_and_back(manager, group)
        gradients(output, inputs)
    assert [direction for direction, _ in copies] == ["offload", "load"]
    same = [seen.storages[number] == seen.origins[number] for number in seen.storages]
    doubles = [seen.packed[number]["dtype"] is torch.float64 for number in seen.storages]
    assert sorted(doubles) == [False, True]
    assert same == [not one for one in doubles]
