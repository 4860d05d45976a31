"""How many bytes on the device are held of what was computed, by whomever."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Made", "size_of"]


class Made(TorchDispatchMode):
    """The storages on a device that operators make inside the block.

    Operators of other threads are not seen, and host memory for copies is none of them.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._made: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {storage._cdata for storage in self._storages((args, kwargs))}
        result = func(*args, **kwargs)
        for storage in self._storages(result):
            # What an operator was given, e.g. a parameter that it views, it has not made.
            if storage._cdata not in given:
                self._made[storage._cdata] = StorageWeakRef(storage)
        return result

    def held(self) -> int:
        """Bytes of those that are not freed yet; a storage that was emptied has none."""
        gc.collect()
        return sum(_size(one) for one in self._made.values())

    def _storages(self, values: Any) -> list[torch.UntypedStorage]:
        tensors = [one for one in tree_leaves(values) if isinstance(one, Tensor) and one.device == self._device]
        return [one.untyped_storage() for one in tensors]


def _size(reference: StorageWeakRef) -> int:
    """Bytes of a storage that may be gone."""
    storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return 0 if storage is None else storage.nbytes()


def size_of(*shape: int, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of a tensor of this shape."""
    return torch.Size(shape).numel() * dtype.itemsize
