"""What of the device's memory was saved for backward, and where it is."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from hyper_parallel_tests.engines.torch_native.activation_swap.copies import (
    ALIGNMENT,
    Part,
    Transfer,
    device_storage,
    fused,
    host_storage,
)


class State(enum.Enum):
    """Where a saved storage is, or which way it goes."""

    DEVICE = "on the device"
    LEAVING = "on its way to the host"
    HOST = "on the host"
    COMING = "on its way to the device"


class Saved:
    """A storage of which saved tensors are views; held by these alone.

    Attributes:
        state: where it is.
        here: its bytes on the device, in a storage of its own or in one that a whole group shares; None on the host.
        there: its bytes on the host, as soon as they are copied there and as long as they are not loaded.
        transfer: the latest copy of it.
    """

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        # While this is held, no other storage has the same address.
        self._origin = StorageWeakRef(storage)
        self.device, self.size = tensor.device, storage.nbytes()
        self._version = tensor._version
        self.there: Part | None = None
        self.transfer: Transfer | None = None
        self.keep(tensor)

    def keep(self, tensor: Tensor) -> None:
        """Holds the device's storage, whatever was planned for it."""
        # Its versions are counted with those of the tensor that it is detached from.
        self._alias: Tensor | None = tensor.detach()
        self.here: Part | None = Part(tensor.untyped_storage(), 0, self.size)
        self.state = State.DEVICE

    def holds(self, tensor: Tensor) -> bool:
        """Whether it has what the tensor's storage has now."""
        return tensor._version == self._version

    def check_unwritten(self) -> None:
        """Notices what autograd notices of a saved tensor that is not swapped.

        Raises:
            RuntimeError: it was written to.
        """
        if self._alias is not None:
            refuse_written(self._alias, self._version)

    def leave(self) -> None:
        """The device's storage is let go of; who else holds it keeps it."""
        self.check_unwritten()
        self.here = self._alias = None
        self.state = State.HOST

    def arrive(self) -> None:
        """The device's storage is as it was."""
        self.there = None
        self.state = State.DEVICE


class Kept:
    """What autograd holds in the place of a saved tensor that is not swapped."""

    def __init__(self, tensor: Tensor) -> None:
        # An operator's own output would hold the graph by which it is held.
        self._alias, self._version = tensor.detach(), tensor._version

    def tensor(self) -> Tensor:
        """The saved tensor again.

        Raises:
            RuntimeError: it was written to, which autograd does not look for where there are hooks.
        """
        refuse_written(self._alias, self._version)
        return self._alias


class Handle:
    """What autograd holds in the place of a saved tensor that is swapped."""

    def __init__(self, tensor: Tensor, saved: Saved) -> None:
        self.saved = saved
        self._dtype, self._offset = tensor.dtype, tensor.storage_offset()
        self._size, self._stride = tensor.size(), tensor.stride()
        self._conjugate, self._negative = tensor.is_conj(), tensor.is_neg()

    def tensor(self) -> Tensor:
        """The saved tensor again.

        Raises:
            RuntimeError: it is not on the device, or was written to.
        """
        saved = self.saved
        if saved.state is not State.DEVICE or saved.here is None:
            raise RuntimeError(
                f"a saved tensor {tuple(self._size)} is {saved.state.value}: launch_load and wait_load its group first"
            )
        saved.check_unwritten()
        offset = saved.here.start // self._dtype.itemsize + self._offset
        found = torch.empty(0, dtype=self._dtype, device=saved.device)
        found.set_(saved.here.storage, offset, self._size, self._stride)
        found = torch._conj(found) if self._conjugate else found
        return torch._neg_view(found) if self._negative else found


def refuse_written(alias: Tensor, version: int) -> None:
    """Raises what autograd raises for a saved tensor that was written to."""
    if alias._version != version:
        raise RuntimeError(
            f"a tensor that backward needs has been modified by an inplace operation since it was saved: "
            f"{tuple(alias.shape)} is at version {alias._version}; expected version {version}"
        )


class SwapGroup:
    """Saved storages that move together; it holds none of them."""

    def __init__(self) -> None:
        # With the order in which they came: that of their copies.
        self._members: weakref.WeakKeyDictionary[Saved, int] = weakref.WeakKeyDictionary()
        self._count = 0

    def add(self, saved: Saved) -> None:
        """Takes a storage."""
        self._count += 1
        self._members[saved] = self._count

    def discard(self, saved: Saved) -> None:
        """Gives a storage to another group."""
        del self._members[saved]

    def launch_offload(self) -> None:
        """See the port."""
        leaving = self._in(State.DEVICE)
        for saved in leaving:
            saved.check_unwritten()
        _each_device([saved for saved in leaving if saved.there is None], _offload)
        for saved in leaving:
            saved.state = State.LEAVING

    def wait_offload(self) -> None:
        """See the port."""
        self._wait(State.LEAVING, Saved.leave, State.DEVICE)

    def launch_load(self) -> None:
        """See the port."""
        self.wait_offload()
        _each_device(self._in(State.HOST), _load)

    def wait_load(self) -> None:
        """See the port."""
        self.launch_load()
        self._wait(State.COMING, Saved.arrive, State.HOST)

    def _wait(self, state: State, end: Callable[[Saved], None], otherwise: State) -> None:
        moving = self._in(state)
        try:
            for transfer in dict.fromkeys(saved.transfer for saved in moving):
                transfer.wait()
        except RuntimeError:
            for saved in moving:
                undo(saved, otherwise)
            raise
        for saved in moving:
            end(saved)

    def _in(self, state: State) -> list[Saved]:
        """Storages in a state, in the order in which they were saved."""
        return sorted((one for one in self._members if one.state is state), key=self._members.__getitem__)


def undo(saved: Saved, state: State) -> None:
    """After a failed copy, a storage is where it was before."""
    saved.state = state
    if state is State.DEVICE:
        saved.there = None
    else:
        saved.here = None


def _each_device(moving: Iterable[Saved], start: Callable[[list[Saved], torch.device], None]) -> None:
    by_device: dict[torch.device, list[Saved]] = {}
    for saved in moving:
        by_device.setdefault(saved.device, []).append(saved)
    for device, group in by_device.items():
        start(group, device)


def _offload(leaving: list[Saved], device: torch.device) -> None:
    if fused():
        places = _places(leaving)
        end = places[-1] + leaving[-1].size
        staging = Part(device_storage(end, device), 0, end)
        for saved, place in zip(leaving, places, strict=True):
            Part(staging.storage, place, saved.size).bytes().copy_(saved.here.bytes())
        host = Part(host_storage(end, device), 0, end)
        there = [Part(host.storage, place, saved.size) for saved, place in zip(leaving, places, strict=True)]
        copies = [(host, staging)]
    else:
        there = [Part(host_storage(saved.size, device), 0, saved.size) for saved in leaving]
        copies = [(to, saved.here) for to, saved in zip(there, leaving, strict=True)]
    transfer = Transfer("offload", device, copies)
    # Not before, so that what has failed to start can be started again.
    for saved, part in zip(leaving, there, strict=True):
        saved.there, saved.transfer = part, transfer


def _load(coming: list[Saved], device: torch.device) -> None:
    """One copy for each host buffer, of what is wanted of it and lies between."""
    by_buffer: dict[int, list[Saved]] = {}
    for saved in coming:
        by_buffer.setdefault(saved.there.storage._cdata, []).append(saved)
    copies, here = [], {}
    for sharing in by_buffer.values():
        start = min(saved.there.start for saved in sharing)
        size = max(saved.there.start + saved.there.size for saved in sharing) - start
        storage = device_storage(size, device)
        for saved in sharing:
            here[saved] = Part(storage, saved.there.start - start, saved.size)
        copies.append((Part(storage, 0, size), Part(sharing[0].there.storage, start, size)))
    transfer = Transfer("load", device, copies)
    for saved, part in here.items():
        saved.here, saved.transfer, saved.state = part, transfer, State.COMING


def _places(parts: list[Saved]) -> list[int]:
    """Where in one buffer each storage begins."""
    places, end = [], 0
    for saved in parts:
        places.append(end)
        end += -(-saved.size // ALIGNMENT) * ALIGNMENT
    return places
