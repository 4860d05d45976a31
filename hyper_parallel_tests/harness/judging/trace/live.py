"""Counts the tensors that Python can reach, to find what a step leaves behind."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["LiveTensors", "live_tensors"]

# What a backend's threads still hold after so long is kept by somebody.
_LETTING_GO_S = 10


class LiveTensors:
    """Tensors that live now, against those that lived when the block began.

    Tensors that only the autograd graph or other C++ code holds are not seen unless they are watched.
    """

    def __init__(self) -> None:
        self._at_start = {id(tensor): weakref.ref(tensor) for tensor in _reachable()}
        self._watched: dict[str, weakref.ref[torch.Tensor]] = {}

    def count(self) -> int:
        """Number of tensors that live now."""
        return len(_reachable())

    def bytes(self) -> int:
        """Bytes of their storages, each storage once."""
        return _bytes(_reachable())

    def new(self) -> list[torch.Tensor]:
        """Tensors that did not live when the block began."""
        return [tensor for tensor in _reachable() if not self._old(tensor)]

    def grown(self, awaited: int | None = None) -> int:
        """Bytes of the storages of `new`, each storage once.

        A backend's threads let go of a finished message a moment after its end is told. Give the bytes that are
        expected, and this returns them as soon as they are reached; after 10 s it returns what there is.
        """
        end = time.monotonic() + _LETTING_GO_S
        while (grown := _bytes(self.new())) != awaited and awaited is not None and time.monotonic() < end:
            threading.Event().wait(0.001)
        return grown

    def watch(self, name: str, tensor: torch.Tensor) -> None:
        """Follow one tensor by a weak reference, which does not keep it alive."""
        self._watched[name] = weakref.ref(tensor)

    def alive(self) -> list[str]:
        """Names of the watched tensors that still live, in the order of watching."""
        gc.collect()
        return [name for name, reference in self._watched.items() if reference() is not None]

    def describe(self) -> list[str]:
        """`float32[4, 4]` for each new tensor, the largest first."""
        found = sorted(self.new(), key=_size, reverse=True)
        return [f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in found]

    def _old(self, tensor: torch.Tensor) -> bool:
        # An id may be used again after its tensor is gone.
        reference = self._at_start.get(id(tensor))
        return reference is not None and reference() is tensor


@contextmanager
def live_tensors() -> Iterator[LiveTensors]:
    """Watch the tensors of this process; ask inside the block or after it."""
    yield LiveTensors()


def _reachable() -> list[torch.Tensor]:
    gc.collect()
    # By the type itself: isinstance would run the __class__ of proxies of any kind.
    return [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]


def _size(tensor: torch.Tensor) -> int:
    # An engine's distributed tensor may refuse to be asked.
    local = getattr(tensor, "_local_tensor", tensor)
    return local.numel() * local.element_size()


def _bytes(tensors: list[torch.Tensor]) -> int:
    sizes = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        if local.device.type != "meta" and local.layout == torch.strided:
            storage = local.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())
