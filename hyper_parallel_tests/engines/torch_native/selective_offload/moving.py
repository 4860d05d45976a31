"""Tensors that go to host memory and come back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.engines.torch_native.activation_swap.copies import (
    Part,
    Transfer,
    device_storage,
    host_storage,
)


class _Layout(NamedTuple):
    """How a distributed tensor is divided."""

    mesh: torch.distributed.device_mesh.DeviceMesh
    placements: tuple[torch.distributed.tensor.Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]


class Away:
    """A tensor's values on the host; it begins to leave when this is made, and comes back as another tensor.

    The device's memory is free when nobody else holds the tensor.
    """

    def __init__(self, tensor: Tensor) -> None:
        tensor = tensor.detach()
        self._layout = None
        if isinstance(tensor, DTensor):
            self._layout = _Layout(tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride())
            tensor = tensor.to_local()
        tensor = tensor.contiguous()
        self._size, self._dtype, self._device = tensor.size(), tensor.dtype, tensor.device
        self._there = host_part(tensor)
        self._leaving: Transfer | None = Transfer("offload", self._device, [(self._there, part_of(tensor))])
        self._coming: tuple[Part, Transfer] | None = None

    def wait(self) -> None:
        """Returns when the values are on the host."""
        if self._leaving is not None:
            self._leaving.wait()
            self._leaving = None

    def come(self) -> None:
        """Begins to bring the values back."""
        self.wait()
        if self._coming is None:
            here = Part(device_storage(self._there.size, self._device), 0, self._there.size)
            self._coming = here, Transfer("load", self._device, [(here, self._there)])

    def stay(self) -> None:
        """Lets go of what has begun to come back."""
        self.wait()
        if self._coming is not None:
            self._coming[1].finish()
            self._coming = None

    def back(self) -> Tensor:
        """The values in new memory of the device."""
        self.come()
        here, transfer = self._coming
        transfer.wait()
        self._coming = None
        return self._tensor(torch.empty(0, dtype=self._dtype, device=self._device), here)

    def value(self) -> Tensor:
        """The values where they are, which share memory with this."""
        self.wait()
        _settle(self._device)
        return self._tensor(torch.empty(0, dtype=self._dtype), self._there)

    def clear(self) -> None:
        """Makes the values zeros."""
        local_of(self.value()).zero_()

    def add(self, other: Away) -> None:
        """Adds other values of this kind."""
        self.wait()
        other.wait()
        local_of(self.value()).add_(local_of(other.value()))

    def _tensor(self, empty: Tensor, part: Part) -> Tensor:
        local = empty.set_(part.storage, part.start // self._dtype.itemsize, self._size)
        if self._layout is None:
            return local
        mesh, placements, shape, stride = self._layout
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


class Slot:
    """A parameter's memory on the device, which is emptied while the values are on the host.

    What the graph holds of the parameter are views of this memory, and right when it is filled again.
    """

    def __init__(self, parameter: nn.Parameter) -> None:
        self.uses = 0
        self._parameter, self._data = parameter, parameter.data
        self._there: Part | None = None
        # In its place it reads as what no computation takes for a value.
        self._nothing = torch.full((), torch.nan, dtype=parameter.dtype, device=parameter.device)

    def leave(self) -> None:
        """Copies the values to the host and frees the memory; does nothing for values that are there."""
        if self._there is not None:
            return
        there, here = host_part(self._data), part_of(self._data)
        Transfer("offload", self._data.device, [(there, here)]).wait()
        self._there = there
        here.storage.resize_(0)
        self._parameter.data = self._nothing.expand(self._data.shape)

    def arrive(self) -> None:
        """Brings the values back; does nothing for values that are here."""
        if self._there is None:
            return
        storage = self._data.untyped_storage()
        storage.resize_(self._there.size)
        Transfer("load", self._data.device, [(part_of(self._data), self._there)]).wait()
        self._there = None
        self._parameter.data = self._data

    def value(self) -> Tensor:
        """The values where they are; share memory with this."""
        if self._there is None:
            return self._data
        data = self._data
        _settle(data.device)
        return torch.empty(0, dtype=data.dtype).set_(self._there.storage, 0, data.size(), data.stride())


def _settle(device: torch.device) -> None:
    """Returns when the host may read what it was sent: what is awaited is so on the device's stream alone."""
    if device.type != "cpu":
        torch.accelerator.current_stream(device).synchronize()


def part_of(tensor: Tensor) -> Part:
    """A dense tensor's bytes."""
    size = tensor.element_size()
    return Part(tensor.untyped_storage(), tensor.storage_offset() * size, tensor.numel() * size)


def host_part(tensor: Tensor) -> Part:
    """As many bytes of the host."""
    size = tensor.numel() * tensor.element_size()
    return Part(host_storage(size, tensor.device), 0, size)


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
