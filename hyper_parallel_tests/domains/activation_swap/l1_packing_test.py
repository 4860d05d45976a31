"""What is packed and unpacked, in which order, and as what it comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from hyper_parallel_tests.domains.activation_swap.networks import INNER, ROWS, WIDTH, chain, order, swap_layers
from hyper_parallel_tests.domains.activation_swap.setting import (
    Call,
    given,
    gradients,
    packing,
    there_and_back,
    turn_of,
)
from hyper_parallel_tests.harness import assert_equal, contract, trace

HIDDEN, STREAM = trace.size_of(ROWS, INNER), trace.size_of(ROWS, WIDTH)


def swapped(engine: Any, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """What a function gives whose saved tensors have been on the host and are back."""
    manager = engine.SwapManager()
    with turn_of(manager) as group:
        output = engine.swap_wrapper(Call(function))(*inputs)
    there_and_back(manager, group)
    return output


def layered(hidden: Tensor) -> Tensor:
    """Saves its input, and the output of each function, one of them twice."""
    one = hidden.sin().exp()
    return (one * one.tanh()).sigmoid()


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda x: (x * 2).cos(),
    "transposed": lambda x: (x * 2).t().cos(),
    "part": lambda x: (x * 2)[1:3, 2:].cos(),
    "every_second": lambda x: (x * 2)[:, ::2].cos(),
    "column": lambda x: (x * 2)[:, 3].cos(),
    "expanded": lambda x: (x[:1] * 2).expand(4, -1).cos(),
    "permuted": lambda x: (x * 2).view(2, 2, 2, 4).permute(3, 1, 0, 2).cos(),
    "scalar": lambda x: (x * 2)[0, 0].cos() * x,
    "integers": lambda x: x.gather(1, (x.detach() * 2).argsort(1)[:, 1:5]) * 2,
    "mask": lambda x: x.masked_fill(x > 0, 1.0).cos(),
    "double": lambda x: (x.double() * 2)[:, 1::3].cos(),
    "bfloat16": lambda x: (x.bfloat16() * 2)[:, 1::3].cos(),
    "conjugate": lambda x: (torch.complex(x, x * 3)[1:].conj() * torch.complex(x, x)[1:]).real,
    "negative": lambda x: torch.complex(x, x * 3).conj().imag * x,
}


@contract("SW-1-01")
def test_order_and_counts(engine, world):
    """Tensors are packed and unpacked when autograd saves and uses them, each as often as without swap."""
    with packing() as plain, saved_tensors_hooks(lambda one: one, lambda one: one):
        gradients(layered(inputs := given(world)), inputs)
    with packing() as seen:
        gradients(swapped(engine, layered, inputs := given(world)), inputs)
    assert seen.events == plain.events
    assert sorted(seen.unpacked) == sorted(seen.packed)


@contract("SW-1-01")
@pytest.mark.parametrize("function", FORMS.values(), ids=FORMS)
def test_same_tensor_comes_back(engine, world, function):
    """Each saved tensor comes back with its value, shape, strides, offset, dtype and device."""
    with packing() as seen:
        gradients(swapped(engine, function, inputs := given(world)), inputs)
    assert seen.packed
    assert seen.forms(seen.unpacked) == seen.forms(seen.packed)
    assert_equal(seen.values(seen.unpacked), seen.values(seen.packed), what="saved tensor")


@contract("SW-1-01")
@pytest.mark.parametrize("function", FORMS.values(), ids=FORMS)
def test_gradients_of_forms(engine, world, function):
    """Gradients are those without swap."""
    expected = gradients(function(inputs := given(world)), inputs)
    assert_equal(gradients(swapped(engine, function, inputs := given(world)), inputs), expected, what="values")


def with_views(hidden: Tensor) -> Tensor:
    """Saves five views of one storage, and no other tensor."""
    whole = hidden * 2
    return (
        (whole.t().cos().t() + whole.cos())[1:]
        + whole[1:].cos()
        + whole[:3].cos()
        + whole.view(-1)[8:].cos().view(3, 8)
    )


@contract("SW-1-01")
def test_views_go_once(engine, world):
    """Views of one storage are one copy there and one back, and views of one storage again."""
    with packing() as seen, engine.watch_swap_copies() as copies:
        gradients(swapped(engine, with_views, inputs := given(world)), inputs)
    size = trace.size_of(*inputs.shape)
    assert copies == [("offload", size), ("load", size)]
    assert len(seen.storages) == 5
    assert len(set(seen.storages.values())) == 1


@contract("SW-1-01")
def test_storages_are_copied_in_order(engine, world):
    """Each distinct storage goes once, in the order of saving, though the input is saved twice."""

    def function(x: Tensor) -> Tensor:
        return (x.bfloat16().float()[:1].exp() * x).sin() + x.cos()

    with engine.watch_swap_copies() as copies:
        gradients(swapped(engine, function, inputs := given(world)), inputs)
    row, whole = trace.size_of(1, inputs.shape[1]), trace.size_of(*inputs.shape)
    # The exponential's output; then the product's factors, of which one is the same; its result; and the input again.
    assert copies == [("offload", row), ("offload", whole), ("offload", whole)] + [
        ("load", row),
        ("load", whole),
        ("load", whole),
    ]


@contract("SW-1-01")
def test_two_layers_save_one_storage(engine, world):
    """What one layer saves as its output and the next as its input is copied once, and the last layer's stays."""
    model = chain(world.device, depth=3, last="tanh")
    swap_layers(engine, model.layers)
    # Copies of two groups that are on their way at once have no order, but those that begin when they are awaited have.
    with engine.watch_swap_copies(held=True) as copies:
        model(given(world)).sum().backward()
    first, second = [STREAM, HIDDEN, HIDDEN, STREAM], [HIDDEN, HIDDEN, STREAM]
    assert [size for direction, size in copies if direction == "offload"] == first + second
    # The second layer's input comes with it; its output was the last layer's input and has never left.
    assert sorted(size for direction, size in copies if direction == "load") == sorted(first + second[:-1])


@contract("SW-1-01")
@pytest.mark.parametrize("held", ["weight", "view", "detached", "buffer"])
def test_what_a_module_holds_stays(engine, world, held):
    """Parameters, views of them, what is detached from them, and buffers never are swapped: no policy is asked."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((8, 8), 2.0))
            self.register_buffer("buffer", torch.full((8, 8), 3.0))

        def forward(self, inputs: Tensor) -> Tensor:
            ways = {
                "weight": lambda: self.weight,
                "view": lambda: self.weight.t()[:4],
                "detached": lambda: self.weight.detach()[4:],
                "buffer": lambda: self.buffer[2:6],
            }
            return inputs @ self.weight * (ways[held]()[:4])

    asked: list[int] = []

    def policy(tensor: Tensor) -> Any:
        asked.append(tensor.untyped_storage().data_ptr())
        return engine.ActivationPolicy.SWAP

    inner = Scale().to(world.device)
    module = engine.swap_wrapper(nn.Sequential(inner), policy)
    for _ in range(2):
        with turn_of(engine.SwapManager()):
            output = module(given(world))
        output.sum().backward()
        own = {one.untyped_storage().data_ptr() for one in (inner.weight, inner.buffer)}
        assert asked, "nothing was saved"
        assert not own.intersection(asked)
        asked.clear()
        # What it holds in the next step is other memory.
        inner.load_state_dict({name: one.clone() for name, one in inner.state_dict().items()}, assign=True)


@contract("SW-1-01")
@pytest.mark.parametrize("state", ["on the host", "on its way to the device", "on its way to the host"])
def test_not_loaded(engine, world, state):
    """Backward over tensors that are not on the device is an error that says where they are."""
    manager = engine.SwapManager()
    inputs = given(world)
    with engine.watch_swap_copies(held=True), turn_of(manager) as group:
        output = engine.swap_wrapper(Call(torch.exp))(inputs)
        manager.launch_offload(group)
        if state != "on its way to the host":
            manager.wait_offload(group)
        if state == "on its way to the device":
            manager.launch_load(group)
        with pytest.raises(RuntimeError, match=f"is {state}: launch_load and wait_load"):
            gradients(output, inputs)


@contract("SW-1-01")
def test_calls_are_those_of_the_module(engine, world):
    """A module gets its arguments by place and by name, and what it returns is returned, whatever it is."""

    class Scaled(nn.Module):
        def forward(self, inputs: Tensor, *, scale: float = 1.0) -> dict[str, Any]:
            return {"scaled": inputs.exp() * scale, "scale": scale}

    inputs = given(world)
    with turn_of(engine.SwapManager()):
        found = engine.swap_wrapper(Scaled())(inputs, scale=3.0)
    assert found["scale"] == 3.0
    assert_equal(found["scaled"].detach(), inputs.detach().exp() * 3.0, what="output")


@contract("SW-1-01")
def test_names_stay(engine, world):
    """State dicts have the names that they have without swap, and load into either."""
    plain, model = chain(world.device), chain(world.device)
    swap_layers(engine, model.layers)
    order(engine, list(model.layers))
    assert list(model.state_dict()) == list(plain.state_dict())
    for layer, other in zip(model.layers, plain.layers, strict=True):
        assert [name for name, _ in layer.named_parameters()] == [name for name, _ in other.named_parameters()]
    doubled = {name: 2 * one for name, one in plain.state_dict().items()}
    model.load_state_dict(doubled)
    plain.load_state_dict(model.state_dict())
    assert_equal(plain.state_dict(), doubled, what="state dict")
