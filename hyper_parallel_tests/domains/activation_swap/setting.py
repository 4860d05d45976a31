"""What the cases swap, how they move one group by hand, and what they see of an engine without its help."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from hyper_parallel_tests.models.seeding import generator

ROWS, WIDTH = 4, 8

_turns = itertools.count()


class Call(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def given(world: Any, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, (ROWS, WIDTH) unless said otherwise, the same for the same seed; wants a gradient."""
    values = torch.randn(shape or (ROWS, WIDTH), generator=generator(seed), dtype=torch.float64)
    return values.to(world.device, dtype).requires_grad_()


@contextmanager
def turn_of(manager: Any) -> Iterator[str]:
    """Context in which it is a group's turn that nobody else has; gives its name."""
    before, group = manager.get_current_group_name(), f"group {next(_turns)} by hand"
    manager.set_current_group_name(group)
    try:
        yield group
    finally:
        manager.set_current_group_name(before)


def there_and_back(manager: Any, group: str) -> None:
    """Moves a group to the host and back."""
    manager.launch_offload(group)
    manager.wait_offload(group)
    manager.launch_load(group)
    manager.wait_load(group)


class Packing:
    """What `saved_tensors_hooks` packs and unpacks inside the block.

    Attributes:
        events: "pack 0", "unpack 0", ... numbered in the order of packing.
        packed, unpacked: a description of each tensor, by number.
        origins, storages: those that were packed and unpacked, by number.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.packed: dict[int, dict[str, Any]] = {}
        self.unpacked: dict[int, dict[str, Any]] = {}
        self.origins: dict[int, StorageWeakRef] = {}
        self.storages: dict[int, StorageWeakRef] = {}

    def values(self, side: dict[int, dict[str, Any]]) -> dict[str, Tensor]:
        """The numbers of one side."""
        return {str(number): one["value"] for number, one in sorted(side.items())}

    def forms(self, side: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """All but the numbers of one side."""
        return {number: {k: v for k, v in one.items() if k != "value"} for number, one in sorted(side.items())}

    def saw_pack(self, tensor: Tensor) -> int:
        number = len(self.packed)
        self.events.append(f"pack {number}")
        self.packed[number] = described(tensor)
        self.origins[number] = StorageWeakRef(tensor.untyped_storage())
        return number

    def saw_unpack(self, number: int, tensor: Tensor) -> None:
        self.events.append(f"unpack {number}")
        self.unpacked[number] = described(tensor)
        self.storages[number] = StorageWeakRef(tensor.untyped_storage())

    def held(self, *known: Tensor) -> list[int]:
        """Numbers of tensors of which a storage is not freed, but for those of known tensors."""
        gc.collect()
        excluded = {StorageWeakRef(one.untyped_storage()) for one in known}
        both = [*self.origins.items(), *self.storages.items()]
        return sorted({number for number, one in both if one not in excluded and not one.expired()})


def described(tensor: Tensor) -> dict[str, Any]:
    """A saved tensor's value and its form."""
    return {
        "value": tensor.detach().clone(),
        "shape": tuple(tensor.shape),
        "strides": tensor.stride(),
        "offset": tensor.storage_offset(),
        "dtype": tensor.dtype,
        "device": tensor.device,
        "conjugate": tensor.is_conj(),
    }


@contextmanager
def packing() -> Iterator[Packing]:
    """Context that sees what hooks of saved tensors do that are made in it, whosever they are."""
    seen, original = Packing(), saved_tensors_hooks.__init__

    def init(self: Any, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        def packed(tensor: Tensor) -> tuple[int, Any]:
            return seen.saw_pack(tensor), pack(tensor)

        def unpacked(pair: tuple[int, Any]) -> Tensor:
            tensor = unpack(pair[1])
            seen.saw_unpack(pair[0], tensor)
            return tensor

        original(self, packed, unpacked)

    with mock.patch.object(saved_tensors_hooks, "__init__", init):
        yield seen


def gradients(output: Tensor, *inputs: Tensor, module: nn.Module | None = None) -> dict[str, Tensor]:
    """The output, and the gradients of its weighted sum for inputs and for a module's parameters."""
    wanted = {f"input {number}": one for number, one in enumerate(inputs)}
    for name, parameter in module.named_parameters() if module is not None else ():
        # Wrappers put themselves into the names, by a word of their own.
        wanted[".".join(part for part in name.split(".") if not part.startswith("_"))] = parameter
    weights = torch.linspace(1, 2, output.numel()).reshape(output.shape).to(output)
    found = torch.autograd.grad(output, list(wanted.values()), weights)
    return {"output": output.detach()} | dict(zip(wanted, found, strict=True))
