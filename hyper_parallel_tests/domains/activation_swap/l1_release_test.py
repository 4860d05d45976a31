"""What is held of saved tensors after their last use, and of models and graphs that are dropped."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from torch import nn

from hyper_parallel_tests.domains.activation_swap.networks import chain, swap_layers
from hyper_parallel_tests.domains.activation_swap.setting import Call, given, packing
from hyper_parallel_tests.harness import contract


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
@pytest.mark.parametrize("end", ["backward", "dropped"])
def test_nothing_is_kept_of_what_stays(engine, world, end):
    """The same goes for what a policy leaves where it is, though an operator saves its own output."""
    module = engine.swap_wrapper(Call(lambda x: x.exp().tanh()), lambda _: engine.ActivationPolicy.SAVE)
    with packing() as seen:
        output = module(inputs := given(world))
        if end == "backward":
            output.sum().backward()
        del output
    assert seen.packed
    assert seen.held(inputs) == []


@contract("SW-1-02")
def test_dropped_model_is_freed(engine, world):
    """A model whose layers are in order is freed with its last reference, and so is what the next one saves."""
    model = chain(world.device, depth=3)
    swap_layers(engine, model.layers)
    model(given(world)).sum().backward()
    parameters = {name: weakref.ref(one) for name, one in model.named_parameters()}
    del model
    gc.collect()
    assert [name for name, one in parameters.items() if one() is not None] == []


@contract("SW-1-02")
def test_groups_of_models_are_apart(engine, world):
    """A model's groups are no other's, also if one that was made before it is gone."""
    manager = engine.SwapManager()
    names: list[str] = []

    def swapped() -> nn.Module:
        model = chain(world.device, depth=3)
        for layer in swap_layers(engine, model.layers):
            layer.register_forward_pre_hook(lambda *_: names.append(manager.get_current_group_name()))
        return model

    first, second = swapped(), swapped()
    del first
    gc.collect()
    for model in (second, swapped()):
        model(given(world)).sum().backward()
    assert len(set(names)) == len(names) == 6


def fail(*_: Any) -> None:
    raise ZeroDivisionError
