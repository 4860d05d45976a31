"""What is written to between the forward that saves it and the backward that needs it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.activation_swap.networks import chain, swap_layers
from hyper_parallel_tests.domains.activation_swap.setting import Call, given, gradients, there_and_back, turn_of
from hyper_parallel_tests.harness import assert_equal, contract


@contract("SW-1-01")
@pytest.mark.parametrize("when", ["before_launch", "before_wait", "not_moved"])
def test_written_after_saving(engine, world, when):
    """A saved tensor that is written to before it has left is an error, as it is without swap."""
    manager = engine.SwapManager()
    kept: list[Tensor] = []

    def function(x: Tensor) -> Tensor:
        kept.append(x.exp())
        return kept[0] * 2

    def late() -> None:
        if when == "before_wait":
            manager.launch_offload(group)
        with torch.no_grad():
            kept[0].add_(1)
        if when != "not_moved":
            there_and_back(manager, group)
        gradients(output, inputs)

    inputs = given(world)
    with turn_of(manager) as group:
        output = engine.swap_wrapper(Call(function))(inputs)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        late()


class Product(nn.Module):
    """Saves what it computes, a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.full((8,), 2.0))
        self.register_buffer("buffer", torch.full((8,), 3.0))

    def forward(self, inputs: Tensor) -> Tensor:
        self.computed = inputs.exp()
        return self.computed * self.parameter * self.buffer


@contract("SW-1-01")
@pytest.mark.parametrize("written", ["parameter", "buffer", "computed"])
def test_what_stays_is_written(engine, world, written):
    """Writing to a saved tensor that is not swapped is an error too, as it is without swap."""
    module = Product().to(world.device)
    with turn_of(engine.SwapManager()):
        output = engine.swap_wrapper(module, lambda _: engine.ActivationPolicy.SAVE)(inputs := given(world))
    with torch.no_grad():
        getattr(module, written).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(output, inputs)


@contract("SW-1-01")
def test_held_by_the_user(engine, world):
    """A tensor that somebody still uses keeps its memory, and may be written to when its copy is on the host."""
    manager = engine.SwapManager()
    kept: list[Tensor] = []

    def function(x: Tensor) -> Tensor:
        kept.append(x.exp())
        return kept[0] * 2

    expected = gradients(function(inputs := given(world)), inputs)
    value = kept.pop().detach().clone()
    with turn_of(manager) as group:
        output = engine.swap_wrapper(Call(function))(inputs)
    manager.launch_offload(group)
    manager.wait_offload(group)
    assert_equal(kept[0].detach(), value, what="the tensor in use")
    with torch.no_grad():
        kept[0].zero_()
    manager.launch_load(group)
    manager.wait_load(group)
    assert_equal(gradients(output, inputs), expected, what="values")


@contract("SW-1-01")
def test_filled_anew_between_forwards(engine, world):
    """What a forward saves of memory that was filled anew is the new, also while the old is swapped for another one."""

    def second(model: nn.Module) -> dict[str, Tensor]:
        memory = given(world).detach()
        first = model(memory)
        memory.copy_(given(world, seed=1).detach())
        found = gradients(model(memory), module=model)
        assert first.requires_grad, "the first graph is not there any more"
        return found

    plain, model = chain(world.device, depth=3), chain(world.device, depth=3)
    swap_layers(engine, model.layers)
    assert_equal(second(model), second(plain), what="values")
