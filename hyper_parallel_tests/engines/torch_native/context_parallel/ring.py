"""Ring attention: queries stay, keys and values go round, partial softmaxes are joined.

Forward. Of a part i of the keys let s be the scores, L_i = log sum exp(s) and o_i = sum exp(s - L_i) v, which is the
attention over that part alone. Over two parts it is

    L = log(exp(L_1) + exp(L_2)),    o = exp(L_1 - L) o_1 + exp(L_2 - L) o_2.

Backward. With the whole L of a query the probabilities of any part are p = exp(s - L), so that each part's gradients
need no other part. With g the gradient of o and D = g . o,

    dv = p^T g,    ds = p (g v^T - D),    dq = scale ds k,    dk = scale ds^T q.

dq stays with its queries; dk and dv go round with their keys, one step more, and so come home.

Sources: Liu et al., "Ring Attention with Blockwise Transformers", arXiv 2310.01889; Dao, "FlashAttention-2",
arXiv 2307.08691.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hyper_parallel_tests.engines.torch_native.context_parallel.layout import ring_source
from hyper_parallel_tests.engines.torch_native.context_parallel.local import grouped, scores
from hyper_parallel_tests.engines.torch_native.context_parallel.split import Split
from hyper_parallel_tests.engines.torch_native.point_to_point import batch_isend_irecv


@dataclass(frozen=True)
class Ring:
    """What does not change while keys go round.

    Attributes:
        split: the sequence over the ranks.
        seen: gives (batch or 1, own queries, keys of a rank) for that rank.
        scale: of the scores; None means width ** -0.5.
        overlap: whether the next keys are under way while the present ones are computed with.
    """

    split: Split
    seen: Callable[[int], Tensor]
    scale: float | None
    overlap: bool


def ring_attention(q: Tensor, k: Tensor, v: Tensor, ring: Ring) -> Tensor:
    """Attention of own queries over all ranks' keys, (batch, heads, own tokens, value width)."""
    return _RingAttention.apply(q, k, v, ring)


class _Transfer:
    """Tensors on their way to the next rank, and those of the rank before. A ring of one keeps its own."""

    def __init__(self, tensors: list[Tensor], source: int, ring: Ring) -> None:
        """``source`` is the rank whose tokens will arrive."""
        split = ring.split
        following = dist.get_global_rank(split.group, (split.rank + 1) % split.size)
        before = dist.get_global_rank(split.group, (split.rank - 1) % split.size)
        # One message: two from one rank to another could only be told apart by their order.
        sent = torch.cat(tensors, -1).contiguous()
        self._widths = [one.shape[-1] for one in tensors]
        if split.size == 1:
            self._arriving, self._handles = sent, []
            return
        shape = list(sent.shape)
        shape[-2] = split.lengths[source]
        self._arriving = sent.new_empty(shape)
        self._handles = batch_isend_irecv(
            [("send", sent, following), ("recv", self._arriving, before)], group=split.group
        )

    def wait(self) -> list[Tensor]:
        """What has arrived, tensor by tensor."""
        for handle in self._handles:
            handle.wait()
        return list(self._arriving.split(self._widths, -1))


def _rounds(tensors: list[Tensor], ring: Ring) -> Any:
    """Yields (whose keys, the tensors) for each step of the ring."""
    split = ring.split
    for step in range(split.size):
        source = ring_source(split.rank, step, split.size)
        last = step == split.size - 1
        following = ring_source(split.rank, step + 1, split.size)
        transfer = _Transfer(tensors, following, ring) if ring.overlap and not last else None
        yield source, tensors
        if not last:
            tensors = (transfer or _Transfer(tensors, following, ring)).wait()


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: Ring) -> Tensor:
        rows = grouped(q, k.shape[1])
        output = q.new_zeros(*rows.shape[:-1], v.shape[-1])
        whole = q.new_full(rows.shape[:-1], -torch.inf)
        for source, (keys, values) in _rounds([k, v], ring):
            part, of_part = _partial(rows, keys, values, ring.seen(source), ring.scale)
            output, whole = joined(output, whole, part, of_part)
        ctx.save_for_backward(q, k, v, output, whole)
        ctx.ring = ring
        return output.flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, output, whole = ctx.saved_tensors
        ring: Ring = ctx.ring
        rows, grad = grouped(q, k.shape[1]), grouped(grad, k.shape[1])
        drift = (grad * output).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(rows), torch.zeros_like(k), torch.zeros_like(v)
        going: _Transfer | None = None
        for source, (keys, values) in _rounds([k, v], ring):
            weights = _weights(scores(rows, keys, ring.scale), whole, ring.seen(source))
            slopes = weights * (torch.einsum("bgrqd,bgkd->bgrqk", grad, values) - drift)
            slopes = slopes * (q.shape[-1] ** -0.5 if ring.scale is None else ring.scale)
            dq += torch.einsum("bgrqk,bgkd->bgrqd", slopes, keys)
            # Those of the rank before have come with the keys that they belong to.
            dk, dv = (dk, dv) if going is None else going.wait()
            dk = dk + torch.einsum("bgrqk,bgrqd->bgkd", slopes, rows)
            dv = dv + torch.einsum("bgrqk,bgrqd->bgkd", weights, grad)
            going = _Transfer([dk, dv], (source - 1) % ring.split.size, ring)
        dk, dv = going.wait()
        return dq.flatten(1, 2), dk, dv, None


def _weights(products: Tensor, whole: Tensor, seen: Tensor) -> Tensor:
    """exp(s - L) of what is seen; a query that sees nothing at all has L = -inf and no weight."""
    return (products - whole[..., None]).exp().masked_fill(~seen[:, None, None], 0.0)


def _partial(rows: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """Attention over some keys alone, and the logarithm of its denominator: -inf where none is seen."""
    products = scores(rows, k, scale).masked_fill(~seen[:, None, None], -torch.inf)
    denominator = products.logsumexp(-1)
    return torch.einsum("bgrqk,bgkd->bgrqd", _weights(products, denominator, seen), v), denominator


def joined(output: Tensor, whole: Tensor, part: Tensor, of_part: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys from the attention over each, with the logarithms of the denominators."""
    total = torch.logaddexp(whole, of_part)
    return _share(whole, total) * output + _share(of_part, total) * part, total


def _share(of_part: Tensor, total: Tensor) -> Tensor:
    return (of_part - total).exp().masked_fill(total == -torch.inf, 0.0)[..., None]
