"""How many bytes of what was computed are still held, by whomever: Python, the graph, or an engine's own cache."""

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
    """The storages that operators make inside the block.

    Attributes:
        most: the most bytes of them that were held at once.

    It goes by the storages themselves and not by Python's tensors, since what the graph saves has no Python tensor, and
    an engine may keep things in places that `saved_tensors_hooks` does not see.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **kwargs)
        for storage in _storages(result):
            # What an operator was given, e.g. a parameter that it views, it has not made.
            if storage._cdata not in given:
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.most = max(self.most, self._bytes())
        return result

    def held(self) -> int:
        """Bytes of those that are not freed yet."""
        gc.collect()
        return self._bytes()

    def _bytes(self) -> int:
        return sum(size for storage, size in self._made.values() if not storage.expired())


def size_of(*shape: int, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of a tensor of this shape."""
    return torch.Size(shape).numel() * dtype.itemsize


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [one.untyped_storage() for one in tree_leaves(values) if isinstance(one, Tensor)]
