"""The heaps of a group of ranks, and what this rank has in them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from hyper_parallel_tests.engines.torch_native.symmetric_memory.allocation import ALIGNMENT, SymmetricHeap, rounded_up
from hyper_parallel_tests.engines.torch_native.symmetric_memory.segment import Segment
from hyper_parallel_tests.engines.torch_native.symmetric_memory.transfers import Held, Transfers

_open: list[Owner] = []


class Owner:
    """See the port. All calls are the calling thread's; only transfers are another's."""

    def __init__(self, group: ProcessGroup | None = None, *, heap_size: int | None = None) -> None:
        if heap_size is None:
            heap_size = int(os.environ.get("SYMMETRIC_MEMORY_HEAP_SIZE", 2**30))
        if heap_size <= 0:
            raise ValueError(f"a heap of {heap_size} bytes: expected a positive number")
        heap_size = rounded_up(heap_size, ALIGNMENT)
        self.segment = Segment(group, heap_size)
        self.rank, self.size = self.segment.rank, self.segment.size
        self.device = torch.device("cpu")
        self.transfers = Transfers(self.rank)
        self._heap = SymmetricHeap(heap_size)
        self._tensors: dict[int, tuple[Tensor, int]] = {}
        _open.append(self)
        # What arrived in a collective of the whole tensor; its own heap's, since it is at one place on all ranks.
        self.arrivals = self.empty(1, torch.int32).zero_()

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype) -> Tensor:
        """See the port."""
        self._check_open()
        shape = [shape] if isinstance(shape, int) else list(shape)
        if not shape or min(shape) <= 0:
            raise ValueError(f"symmetric memory of shape {shape}: expected positive dimensions")
        nbytes = math.prod(shape) * dtype.itemsize
        asked = [row[0] for row in self.segment.publish([nbytes])]
        if len(set(asked)) > 1:
            raise ValueError(f"ranks ask for different sizes of symmetric memory, in bytes by rank: {asked}")
        offset = self._heap.allocate(nbytes)
        tensor = self.heap_of(self.rank)[offset : offset + nbytes].view(dtype).view(shape)
        self._tensors[id(tensor)] = tensor, offset
        return tensor

    def free(self, tensor: Tensor) -> None:
        """See the port."""
        self._check_open()
        kept, offset = self._tensors.get(id(tensor), (None, -1))
        self.transfers.quiet()
        offered = [row[0] for row in self.segment.publish([offset])]
        if kept is None:
            raise ValueError("the tensor is none that this memory's empty() returned, or it was given back before")
        if len(set(offered)) > 1:
            raise ValueError(
                f"ranks give back different tensors, at offsets by rank {offered} (-1: no tensor of its own)"
            )
        self._heap.free(offset)
        del self._tensors[id(tensor)]
        tensor.set_()

    def quiet(self, timeout: timedelta | None = None) -> None:
        """See the port."""
        self._check_open()
        self.transfers.quiet(timeout)

    def fence(self) -> None:
        """See the port."""
        self._check_open()
        self.transfers.fence()

    def barrier(self, timeout: timedelta | None = None) -> None:
        """See the port."""
        self.quiet(timeout)
        self.segment.meet(timeout)

    def transfers_held(self) -> AbstractContextManager[Held]:
        """See the port."""
        self._check_open()
        return self.transfers.held()

    def close(self) -> None:
        """See the port. Waits for no other rank, so that it works after a failure too."""
        if self in _open:
            _open.remove(self)
            self.transfers.close()
            self.segment.close()

    def heap_of(self, rank: int) -> Tensor:
        """A rank's heap, uint8."""
        return self.segment.heaps[rank]

    def _check_open(self) -> None:
        if self not in _open:
            raise RuntimeError("this symmetric memory is closed: acquire it anew")


def place_of(tensor: Tensor, what: str) -> tuple[Owner, int]:
    """Whose heap a tensor is in, and at which byte of it.

    Raises:
        ValueError: it is in no open one, or not contiguous.
    """
    if not tensor.is_contiguous():
        raise ValueError(f"{what} is not contiguous: shape {list(tensor.shape)}, strides {list(tensor.stride())}")
    for owner in _open:
        offset = tensor.data_ptr() - owner.heap_of(owner.rank).data_ptr()
        if 0 <= offset < owner.heap_of(owner.rank).numel():
            return owner, offset
    raise ValueError(f"{what} is not in symmetric memory: expected a tensor of acquire_symmetric_memory().empty(...)")
