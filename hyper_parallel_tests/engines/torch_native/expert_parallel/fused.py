"""Dispatch, grouped GEMM, SwiGLU, grouped GEMM and combine as one operation, with transfers beside the computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from hyper_parallel_tests.engines.torch_native.collectives import all_to_all_single
from hyper_parallel_tests.engines.torch_native.expert_parallel.experts import grouped_mm
from hyper_parallel_tests.engines.torch_native.expert_parallel.movement import Exchange, exchange_counts

__all__ = ["fused_experts"]


def fused_experts(
    rows: Tensor,
    counts: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    device_mesh: DeviceMesh,
    *,
    chunks: int = 1,
) -> Tensor:
    """See the port. A chunk has whole experts, so that each sum has the same terms with any number of chunks."""
    exchange = exchange_counts(rows, counts, device_mesh)
    return _FusedExperts.apply(rows, gate, up, down, _chunks(exchange, chunks))


@dataclass(frozen=True)
class _Chunk:
    """Some of each rank's experts, and the rows for them.

    Attributes:
        exchange: of these experts alone.
        experts: which they are among a rank's own.
        rows: where their rows are among all that this rank sends, (rows,), int64.
    """

    exchange: Exchange
    experts: slice
    rows: Tensor

    @property
    def counts(self) -> Tensor:
        return self.exchange.incoming.sum(0)

    def start(self, rows: Tensor) -> _UnderWay:
        """Sends the chunk's part of all rows off, to the experts."""
        return _UnderWay(rows.index_select(0, self.rows), self.exchange.received, self.exchange.sent, self.exchange)

    def arrived(self, under_way: _UnderWay) -> Tensor:
        """The rows sorted by expert."""
        return under_way.wait().index_select(0, self.exchange.by_expert())

    def start_back(self, rows: Tensor) -> _UnderWay:
        """Sends what the experts made of them back."""
        leaving = rows.index_select(0, self.exchange.by_rank())
        return _UnderWay(leaving, self.exchange.sent, self.exchange.received, self.exchange)


def _chunks(exchange: Exchange, number: int) -> list[_Chunk]:
    each = exchange.outgoing.shape[1]
    # The number of each row's expert among those of its rank.
    own = torch.arange(each, device=exchange.outgoing.device).repeat(len(exchange.outgoing))
    expert_of_row = own.repeat_interleave(exchange.outgoing.flatten())
    chunks = []
    for experts in torch.arange(each).tensor_split(min(number, each)):
        part = slice(int(experts[0]), int(experts[-1]) + 1)
        inside = (expert_of_row >= part.start) & (expert_of_row < part.stop)
        some = Exchange(exchange.outgoing[:, part], exchange.incoming[:, part], exchange.group)
        chunks.append(_Chunk(some, part, inside.nonzero().flatten()))
    return chunks


class _UnderWay:
    """An all-to-all that has begun."""

    def __init__(self, rows: Tensor, received: list[int], sent: list[int], exchange: Exchange) -> None:
        # Kept, for the transfer reads it.
        self._leaving = rows
        self._arriving = rows.new_empty(sum(received), *rows.shape[1:])
        self._work = all_to_all_single(self._arriving, rows, received, sent, group=exchange.group, async_op=True)

    def wait(self) -> Tensor:
        """The rows, when they are there."""
        self._work.wait()
        return self._arriving


class _FusedExperts(torch.autograd.Function):
    """y = down(a), a = silu(g) * u, g = gate(x), u = up(x). Backward goes the same way with dy, and back with dx."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, gate: Tensor, up: Tensor, down: Tensor, chunks: list[_Chunk]) -> Tensor:
        kept = []

        def compute(chunk: _Chunk, x: Tensor) -> Tensor:
            to_gate, to_up, to_down = (one[chunk.experts].transpose(1, 2) for one in (gate, up, down))
            g, u = grouped_mm(x, to_gate, chunk.counts), grouped_mm(x, to_up, chunk.counts)
            kept.extend((x, g, u))
            return grouped_mm(F.silu(g) * u, to_down, chunk.counts)

        output = _through(rows, chunks, compute)
        ctx.chunks = chunks
        ctx.save_for_backward(gate, up, down, *kept)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, down, *kept = ctx.saved_tensors
        of_gate, of_up, of_down = (torch.zeros_like(one) for one in (gate, up, down))
        remaining = iter(zip(kept[::3], kept[1::3], kept[2::3], strict=True))

        def compute(chunk: _Chunk, dy: Tensor) -> Tensor:
            x, g, u = next(remaining)
            part, counts = chunk.experts, chunk.counts
            sigmoid = g.sigmoid()
            of_down[part] = _products(dy, g * sigmoid * u, counts)
            da = grouped_mm(dy, down[part], counts)
            dg, du = da * u * sigmoid * (1 + g * (1 - sigmoid)), da * g * sigmoid
            of_gate[part], of_up[part] = _products(dg, x, counts), _products(du, x, counts)
            return grouped_mm(dg, gate[part], counts) + grouped_mm(du, up[part], counts)

        return _through(grad.contiguous(), ctx.chunks, compute), of_gate, of_up, of_down, None


def _through(rows: Tensor, chunks: list[_Chunk], compute: Any) -> Tensor:
    """Rows to the experts, through ``compute`` and back, chunk by chunk; all are under way before the first is used."""
    going = [chunk.start(rows) for chunk in chunks]
    coming = [chunk.start_back(compute(chunk, chunk.arrived(one))) for chunk, one in zip(chunks, going, strict=True)]
    output = torch.empty_like(rows)
    for chunk, one in zip(chunks, coming, strict=True):
        output[chunk.rows] = one.wait()
    return output


def _products(outputs: Tensor, inputs: Tensor, counts: Tensor) -> Tensor:
    """Each expert's weight gradient, (experts, out, in): the sum over its rows of output gradient times input."""
    sizes = counts.tolist()
    return torch.stack([dy.T @ x for dy, x in zip(outputs.split(sizes), inputs.split(sizes), strict=True)])
