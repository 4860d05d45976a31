"""Tensors under way between ranks while the rank does something else, and their gradients on the way back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from hyper_parallel_tests.engines.torch_native.collectives import (
    all_gather_into_tensor,
    all_to_all_single,
    reduce_scatter_tensor,
)
from hyper_parallel_tests.engines.torch_native.context_parallel import movement
from hyper_parallel_tests.engines.torch_native.context_parallel.split import Split


class Pending:
    """Rows under way.

    Attributes:
        arriving: where they arrive; undefined until ``wait``.
    """

    def __init__(self, handle: Any, arriving: Tensor) -> None:
        self._handle, self.arriving = handle, arriving

    def wait(self) -> Tensor:
        """The rows, when they are there."""
        self._handle.wait()
        return self.arriving


class Route(Protocol):
    """A way from one layout of a tensor to another, and back."""

    def start(self, tensor: Tensor) -> Pending:
        """Sends the tensor off."""

    def finish(self, rows: Tensor) -> Tensor:
        """The tensor in its new layout, of the rows that have arrived."""

    def start_back(self, grad: Tensor) -> Pending:
        """Sends the gradient of what ``finish`` gave back."""

    def finish_back(self, rows: Tensor) -> Tensor:
        """The gradient of what ``start`` got, of the rows that have arrived."""


@dataclass(frozen=True)
class ToHeads:
    """(own tokens, all heads) -> (all tokens, own heads), by all-to-all."""

    split: Split
    seq_dim: int
    head_dim: int

    def start(self, tensor: Tensor) -> Pending:
        """See ``Route``."""
        rows = movement.pack_heads(tensor, self.seq_dim, self.head_dim, self.split)
        return self._exchange(rows, self.split.lengths, movement.sent_to_each(self.split))

    def finish(self, rows: Tensor) -> Tensor:
        """See ``Route``."""
        return movement.unpack_sequence(rows, self.seq_dim, self.head_dim, self.split)

    def start_back(self, grad: Tensor) -> Pending:
        """See ``Route``."""
        rows = movement.pack_sequence(grad, self.seq_dim, self.head_dim, self.split)
        return self._exchange(rows, movement.sent_to_each(self.split), self.split.lengths)

    def finish_back(self, rows: Tensor) -> Tensor:
        """See ``Route``."""
        return movement.unpack_heads(rows, self.seq_dim, self.head_dim, self.split)

    def _exchange(self, rows: Tensor, received: list[int], sent: list[int]) -> Pending:
        arriving = rows.new_empty(sum(received), *rows.shape[1:])
        handle = all_to_all_single(arriving, rows, received, sent, group=self.split.group, async_op=True)
        return Pending(handle, arriving)


@dataclass(frozen=True)
class ToWhole:
    """Own tokens -> all tokens, by all-gather; the gradient's way back is a reduce-scatter."""

    split: Split
    seq_dim: int

    def start(self, tensor: Tensor) -> Pending:
        """See ``Route``."""
        rows = movement.pack_own(tensor, self.seq_dim, self.split)
        arriving = rows.new_empty(len(rows) * self.split.size, *rows.shape[1:])
        return Pending(all_gather_into_tensor(arriving, rows, group=self.split.group, async_op=True), arriving)

    def finish(self, rows: Tensor) -> Tensor:
        """See ``Route``."""
        return movement.unpack_all(rows, self.seq_dim, self.split)

    def start_back(self, grad: Tensor) -> Pending:
        """See ``Route``."""
        rows = movement.pack_all(grad, self.seq_dim, self.split)
        arriving = rows.new_empty(len(rows) // self.split.size, *rows.shape[1:])
        return Pending(reduce_scatter_tensor(arriving, rows, group=self.split.group, async_op=True), arriving)

    def finish_back(self, rows: Tensor) -> Tensor:
        """See ``Route``."""
        return movement.unpack_own(rows, self.seq_dim, self.split)


class Transfer:
    """One tensor on a route; it starts when this is made.

    Args:
        tensor: what goes.
        route: its way.
        going_back: gets the gradient while it is on the way back, for whoever waits for it there; None where the
            gradient is to have arrived before backward goes on.
    """

    def __init__(self, tensor: Tensor, route: Route, going_back: deque[Transfer] | None = None) -> None:
        self._route, self._going_back = route, going_back
        self._shape = tensor.shape
        self._pending: Pending | None = route.start(tensor.detach())

    def arrived(self, tensor: Tensor) -> Tensor:
        """``tensor`` in its new layout, when it is there. Its gradient goes to ``tensor``."""
        return _Arrival.apply(tensor, self)

    def take(self) -> Tensor:
        """What has arrived, without a gradient; once."""
        return self._route.finish(self._rows())

    def send_back(self, grad: Tensor) -> Tensor:
        """Starts the gradient's way back; zeros stand for it where another place waits for it."""
        self._pending = self._route.start_back(grad)
        if self._going_back is None:
            return self.take_back()
        self._going_back.append(self)
        return grad.new_zeros(self._shape)

    def take_back(self) -> Tensor:
        """The gradient, when it is there; once."""
        return self._route.finish_back(self._rows())

    def _rows(self) -> Tensor:
        """What has arrived; not kept, for autograd keeps this transfer until backward."""
        pending, self._pending = self._pending, None
        return pending.wait()


class _Arrival(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, transfer: Transfer) -> Tensor:
        ctx.transfer = transfer
        return transfer.take()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.transfer.send_back(grad), None


def moved_together(tensors: Sequence[Tensor], route: Route) -> list[Tensor]:
    """The tensors in their new layout; all are under way before the first is waited for."""
    transfers = [Transfer(one, route) for one in tensors]
    return [transfer.arrived(one) for one, transfer in zip(tensors, transfers, strict=True)]
