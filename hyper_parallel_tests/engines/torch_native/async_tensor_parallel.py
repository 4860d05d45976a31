"""Asynchronous tensor parallelism of torch_native: a plain ring, since PyTorch has it for compiled CUDA programs alone.

Of n ranks let rank r have the tokens X_r of a sequence X, columns of a weight as A_r and rows of another as B_r.

All-gather and product, Y = X A_r^T. The parts of X go round: in step i rank r has X_(r-i), sends it on to rank r + 1
and meanwhile computes its rows of Y.

Product and reduce-scatter, Z_p = sum_r H_p B_r^T with H_p the rows of this rank's H for the tokens of rank p. The sums
go round: that of p begins at rank p + 1, which sends its term on, and each rank adds its own, which it computed while
the sum was under way; after n - 1 steps the sum comes to rank p with all terms.

Backward of each is the other one. With G the gradient of Y, that of X_p is sum_r G_p A_r and goes as sums do, and
that of A_r is sum_p G_p^T X_p, for which the parts go round once more, as Megatron gathers them again. With G_p the
gradient of Z_p, that of H_p is G_p B_r and that of B_r is sum_p G_p^T H_p, both while the parts of G go round.

Source: Wang et al., "Overlap Communication with Dependent Computation via Decomposition", ASPLOS 2023; Korthikanti et
al., "Reducing Activation Recomputation in Large Transformer Models", section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hyper_parallel_tests.engines.torch_native.point_to_point import batch_isend_irecv

__all__ = ["all_gather_matmul", "matmul_reduce_scatter"]


def all_gather_matmul(tokens: Tensor, weights: Sequence[Tensor], device_mesh: Any, *, dim: int = 1) -> list[Tensor]:
    """See the port."""
    return list(_AllGatherMatmul.apply(_Ring(device_mesh), dim, tokens, *weights))


def matmul_reduce_scatter(inputs: Tensor, weight: Tensor, device_mesh: Any, *, dim: int = 1) -> Tensor:
    """See the port."""
    if inputs.shape[dim] % device_mesh.size():
        raise ValueError(
            f"{inputs.shape[dim]} tokens do not divide among {device_mesh.size()} ranks: pad the sequence to a multiple"
        )
    return _MatmulReduceScatter.apply(_Ring(device_mesh), dim, inputs, weight)


class _Ring:
    """The ranks of a mesh, each of which sends to the next."""

    def __init__(self, device_mesh: Any) -> None:
        self.group = device_mesh.get_group()
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)

    def peer(self, distance: int) -> int:
        """Global rank of the member so many places further on."""
        return dist.get_global_rank(self.group, (self.rank + distance) % self.size)

    def start(self, sent: Tensor) -> tuple[Tensor, list[Any]]:
        """Sends to the next rank: room for what comes from the one before, and what to wait for."""
        arriving = torch.empty_like(sent)
        transfers = [("send", sent, self.peer(1)), ("recv", arriving, self.peer(-1))]
        return arriving, batch_isend_irecv(transfers, group=self.group)

    def parts(self, own: Tensor) -> Iterator[tuple[int, Tensor]]:
        """All ranks' parts and whose they are, this rank's first; the next one is under way while one is used."""
        part, handles = own.contiguous(), []
        for step in range(self.size):
            arriving, handles = self.start(part) if step + 1 < self.size else (part, [])
            yield (self.rank - step) % self.size, part
            for handle in handles:
                handle.wait()
            part = arriving

    def sum(self, term: Callable[[int], Tensor]) -> Tensor:
        """The sum over the ranks of their terms for this rank; a term is computed while the sum is under way to it."""
        total = term((self.rank - 1) % self.size).contiguous()
        for step in range(1, self.size):
            arriving, handles = self.start(total)
            own = term((self.rank - 1 - step) % self.size)
            for handle in handles:
                handle.wait()
            total = arriving + own
        return total


def _weight_gradient(gradient: Tensor, inputs: Tensor) -> Tensor:
    """(outer, inner) of (..., outer) and (..., inner)."""
    return gradient.flatten(0, -2).t() @ inputs.flatten(0, -2)


class _AllGatherMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ring: _Ring, dim: int, tokens: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.ring, ctx.dim = ring, dim
        ctx.save_for_backward(tokens, *weights)
        products = {source: [part @ weight.t() for weight in weights] for source, part in ring.parts(tokens)}
        return tuple(
            torch.cat(parts, dim) for parts in zip(*(products[rank] for rank in range(ring.size)), strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        tokens, *weights = ctx.saved_tensors
        cut = [gradient.chunk(ctx.ring.size, ctx.dim) for gradient in gradients]
        of_tokens = None
        if ctx.needs_input_grad[2]:
            pairs = list(zip(cut, weights, strict=True))
            of_tokens = ctx.ring.sum(lambda rank: sum(parts[rank] @ weight for parts, weight in pairs))
        of_weights = [torch.zeros_like(weight) for weight in weights]
        for source, part in ctx.ring.parts(tokens):
            for total, parts in zip(of_weights, cut, strict=True):
                total += _weight_gradient(parts[source], part)
        return None, None, of_tokens, *of_weights


class _MatmulReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ring: _Ring, dim: int, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.ring, ctx.dim = ring, dim
        ctx.save_for_backward(inputs, weight)
        parts = inputs.chunk(ring.size, dim)
        return ring.sum(lambda rank: parts[rank] @ weight.t())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        inputs, weight = ctx.saved_tensors
        parts = inputs.chunk(ctx.ring.size, ctx.dim)
        of_inputs, of_weight = [torch.empty(0)] * ctx.ring.size, torch.zeros_like(weight)
        for source, part in ctx.ring.parts(gradient):
            of_inputs[source] = part @ weight
            of_weight += _weight_gradient(part, parts[source])
        return None, None, torch.cat(of_inputs, ctx.dim), of_weight
