"""The bytes that a rank really holds for a model in training: of parameters, gradients, states, and for backward."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["Held", "SavedBytes", "held_by", "local_part"]


class Held(NamedTuple):
    """Bytes of one rank, each storage once."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return sum(self)


def held_by(model: nn.Module, optimizer: torch.optim.Optimizer, activations: int) -> Held:
    """What is held of a model whose optimizer has been at work and whose gradients are there."""
    parameters = [one for _, one in model.named_parameters()]
    states = [one for state in optimizer.state.values() for one in state.values() if isinstance(one, Tensor)]
    gradients = [one.grad for one in parameters if one.grad is not None]
    return Held(_bytes(parameters), _bytes(gradients), _bytes(states), activations)


class SavedBytes:
    """What autograd saves in a block and has not let go of.

    Attributes:
        most: the most bytes at once, of storages that are none of the model's nor of the data.
    """

    def __init__(self, model: nn.Module, data: Iterable[Tensor]) -> None:
        self.most = 0
        self._model = model
        self._not_counted = {_storage(one).data_ptr() for one in data}
        # Storage's address -> its bytes, and how many saved tensors lie in it.
        self._here: dict[int, list[int]] = {}

    @contextmanager
    def watched(self) -> Iterator[SavedBytes]:
        """The block."""
        with torch.autograd.graph.saved_tensors_hooks(self._save, lambda saved: saved.tensor):
            yield self

    def _save(self, tensor: Tensor) -> _Saved:
        storage = _storage(tensor)
        own = {_storage(one).data_ptr() for one in (*self._model.parameters(), *self._model.buffers())}
        place = storage.data_ptr()
        if place in own or place in self._not_counted or not storage.nbytes():
            return _Saved(tensor, lambda: None)
        entry = self._here.setdefault(place, [storage.nbytes(), 0])
        entry[1] += 1
        self.most = max(self.most, sum(size for size, _ in self._here.values()))
        return _Saved(tensor, lambda: self._let_go(place))

    def _let_go(self, place: int) -> None:
        entry = self._here[place]
        entry[1] -= 1
        if not entry[1]:
            del self._here[place]


class _Saved:
    """What the graph holds in a tensor's place; it tells when the graph lets go."""

    def __init__(self, tensor: Tensor, gone: Callable[[], Any]) -> None:
        self.tensor = tensor
        self._gone = gone

    def __del__(self) -> None:
        self._gone()


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a distributed tensor, and what is inside of one that a collective still fills."""
    while hasattr(tensor, "__tensor_flatten__"):
        # A distributed tensor tells its mesh besides.
        tensor = getattr(tensor, tensor.__tensor_flatten__()[0][0])
    return tensor


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return local_part(tensor.detach()).untyped_storage()


def _bytes(tensors: Iterable[Tensor]) -> int:
    gc.collect()
    return sum({one.data_ptr(): one.nbytes() for one in map(_storage, tensors)}.values())
