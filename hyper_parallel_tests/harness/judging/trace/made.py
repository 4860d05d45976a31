"""How many bytes of what was computed are still held, by whomever: Python, the graph, or an engine's own cache."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hyper_parallel_tests.harness.judging.trace.collectives import unfolds

__all__ = ["Made", "made", "size_of"]


class Made(TorchDispatchMode):
    """The storages that operators make inside the block.

    Attributes:
        most: the most bytes of them that were held at once.

    It goes by the storages themselves and not by Python's tensors, since what the graph saves has no Python tensor, and
    an engine may keep things in places that `saved_tensors_hooks` does not see. Operators of other threads are not
    seen.
    """

    def __init__(self, device: torch.device | None) -> None:
        super().__init__()
        self.most = 0
        self._device = device
        self._made: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # DTensor tries an operation on shapes alone the first time: nothing is held.
        if any(issubclass(kind, FakeTensor) for kind in types):
            return func(*args, **kwargs)
        # What a distributed tensor does comes back here as operations on plain tensors.
        if any(unfolds(kind) for kind in types):
            return NotImplemented
        given = {storage._cdata for storage in self._storages((args, kwargs))}
        result = func(*args, **kwargs)
        for storage in self._storages(result):
            # What an operator was given, e.g. a parameter that it views, it has not made.
            if storage._cdata not in given:
                self._made[storage._cdata] = StorageWeakRef(storage)
        self.most = max(self.most, self._bytes())
        return result

    def held(self) -> int:
        """Bytes of those that are not freed yet; a storage that was emptied has none."""
        gc.collect()
        return self._bytes()

    def _bytes(self) -> int:
        storages = {key: torch.UntypedStorage._new_with_weak_ptr(one.cdata) for key, one in self._made.items()}
        # Forget the dead: to ask for them too after each operator costs the square of their number.
        self._made = {key: self._made[key] for key, storage in storages.items() if storage is not None}
        return sum(storage.nbytes() for storage in storages.values() if storage is not None)

    def _storages(self, values: Any) -> list[torch.UntypedStorage]:
        tensors = [one for one in tree_leaves(values) if isinstance(one, Tensor)]
        return [one.untyped_storage() for one in tensors if self._device in (None, one.device)]


def made(device: torch.device | None = None) -> Made:
    """Follow the storages that this thread's operators make inside the block, on one device or on all."""
    return Made(device)


def size_of(*shape: int, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of a tensor of this shape."""
    return torch.Size(shape).numel() * dtype.itemsize
