"""When groups move, and beside what."""

from __future__ import annotations

import gc
import threading
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from hyper_parallel_tests.domains.activation_swap.networks import chain, in_order, order, steps_of, swap_layers
from hyper_parallel_tests.domains.activation_swap.setting import Call, given, gradients, there_and_back, turn_of
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
def test_layers_in_layers(engine, world):
    """Behind a layer inside of another one it is the outer one's turn again, also behind one that failed."""
    manager = engine.SwapManager()
    names: list[str] = []

    def named(hidden: Tensor) -> Tensor:
        names.append(manager.get_current_group_name())
        return hidden.exp()

    def failing(_: Tensor) -> Tensor:
        raise ZeroDivisionError

    def around(hidden: Tensor) -> Tensor:
        hidden = inner[0](named(hidden))
        names.append(manager.get_current_group_name())
        with pytest.raises(ZeroDivisionError):
            inner[1](hidden)
        return named(hidden)

    inner = order(engine, [engine.swap_wrapper(Call(named)), engine.swap_wrapper(Call(failing))])
    outer = order(engine, [engine.swap_wrapper(Call(around)), engine.swap_wrapper(Call(torch.sin))])
    with turn_of(manager) as group:
        outer[1](outer[0](given(world)))
        assert manager.get_current_group_name() == group
    before, inside, behind, end = names
    assert before == behind == end
    assert len({group, before, inside}) == 3


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
    assert_equal(found, expected, what="values")


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
@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
@pytest.mark.parametrize("move", ["offload", "load"])
def test_failed_copy(engine, world, move, error):
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
    no_room = mock.patch.object(torch.Tensor, "copy_", side_effect=error("no room"))
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
@pytest.mark.parametrize("fused", [False, True], ids=["single", "fused"])
@pytest.mark.parametrize("move", ["offload", "load"])
def test_failed_launch(engine, world, move, fused):
    """Copies that cannot even start are an error of the launch, and no wait takes them for done."""
    manager = engine.SwapManager()
    inputs = given(world)
    expected = gradients(inputs.exp(), inputs)
    with turn_of(manager) as group:
        output = engine.swap_wrapper(Call(torch.exp))(inputs)
    if move == "load":
        manager.launch_offload(group)
        manager.wait_offload(group)
    launch = getattr(manager, f"launch_{move}")
    no_thread = mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("no thread"))
    with engine.set_swap_fusion(fused), engine.watch_swap_copies():
        with no_thread, pytest.raises(RuntimeError, match="no thread"):
            launch(group)
        there_and_back(manager, group)
    assert_equal(gradients(output, inputs), expected, what="values")


@contract("SW-1-02")
def test_group_launched_twice(engine, world):
    """What a group gets after a launch goes with the next one, and a wait is for the copies of both."""
    manager = engine.SwapManager()
    inputs = given(world)
    expected = gradients(inputs.exp() * inputs.sin(), inputs)
    with engine.watch_swap_copies(held=True) as copies:
        with turn_of(manager) as group:
            first = engine.swap_wrapper(Call(torch.exp))(inputs)
            manager.launch_offload(group)
            second = engine.swap_wrapper(Call(torch.sin))(inputs)
            manager.launch_offload(group)
        manager.wait_offload(group)
        assert [direction for direction, _ in copies] == ["offload", "offload"]
        manager.wait_load(group)
        assert_equal(gradients(first * second, inputs), expected, what="values")


@contract("SW-1-02")
@pytest.mark.parametrize("removed", [0, 3], ids=["first", "last"])
def test_removed_layer(engine, world, removed):
    """A layer at either end may be taken out of the model and forgotten; the others move as before."""
    plain, model = chain(world.device), chain(world.device)
    swap_layers(engine, model.layers)
    for one in (plain, model):
        del one.layers[removed]
        step(one, world)
    gc.collect()
    inputs = given(world)
    expected = gradients(plain(inputs), inputs, module=plain)
    assert_equal(gradients(model(inputs), inputs, module=model), expected, what="values")


@contract("SW-1-02")
@pytest.mark.parametrize("reentrant", [False, True], ids=["saved_tensors", "reentrant"])
def test_recomputed_layer_moves_nothing(engine, world, reentrant):
    """A layer that a checkpoint runs once more in backward moves as in one step."""
    model = chain(world.device, depth=3)
    ordered = swap_layers(engine, model.layers)
    hidden = given(world)
    # A second forward that stops where it has what is needed would not reach what follows a layer.
    with set_checkpoint_early_stop(False), steps_of(engine.SwapManager(), ordered) as steps:
        for layer in ordered:
            hidden = checkpoint(layer, hidden, use_reentrant=reentrant)
        hidden.sum().backward()
    # The second forward of each is seen as well, in the middle of its backward.
    found = [one for one in steps if not one.startswith("forward")]
    assert found == [one for one in in_order(3) if not one.startswith("forward")]


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
