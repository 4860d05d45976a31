"""A decoder in which some feed-forwards are layers of experts, of which each token sees the few that it chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.models.decoder import Attention, Decoder, DecoderShape, FeedForward, rotate
from hyper_parallel_tests.models.seeding import Batch, build

__all__ = [
    "PLAN",
    "QWEN",
    "MoeDecoder",
    "MoeLayer",
    "MoeShape",
    "balancing_loss",
    "moe_decoder",
    "moe_loss",
]


@dataclass(frozen=True)
class MoeShape(DecoderShape):
    """Sizes of a decoder with experts; those that it shares with `DecoderShape` are as there.

    Attributes:
        dense_layers: of the blocks, the first so many have a feed-forward without experts.
        experts: experts in a layer.
        top_k: how many a token sees.
        expert_ffn: width inside an expert.
        shared_ffn: width inside the expert that sees every token, 0 for none.
        normed_weights: whether a token's weights are divided by their sum.
        qk_norm: whether each head's queries and keys are normed before they are turned.
        width: of a head, hidden / heads unless given.
    """

    dense_layers: int = 0
    experts: int = 4
    top_k: int = 2
    expert_ffn: int = 16
    shared_ffn: int = 0
    normed_weights: bool = False
    qk_norm: bool = False
    width: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(f"top_k={self.top_k} must be between 1 and experts={self.experts}")
        if not 0 <= self.dense_layers <= self.layers:
            raise ValueError(f"dense_layers={self.dense_layers} must be between 0 and layers={self.layers}")

    @property
    def head_width(self) -> int:
        return self.width or super().head_width


PLAN = MoeShape(
    vocab=1024, hidden=256, layers=4, dense_layers=2, heads=8, kv_heads=8, ffn=704, expert_ffn=512, seq=64, tied=False
)
"""The decoder of the FSDP plan's L3-03: 2 dense and 2 layers of 4 experts, top-2, twice the hidden width inside."""

QWEN = MoeShape(
    vocab=64,
    hidden=32,
    layers=2,
    heads=8,
    kv_heads=2,
    width=8,
    experts=16,
    top_k=4,
    expert_ffn=12,
    normed_weights=True,
    qk_norm=True,
    tied=False,
)
"""Qwen3-30B-A3B scaled down by 64: all heads twice the hidden width, an expert 3/8 of it, and four experts a token."""


class Routing(NamedTuple):
    """What a router chose.

    Attributes:
        weights, experts: (tokens, top_k), best first.
        scores: (tokens, experts), a softmax.
    """

    weights: Tensor
    experts: Tensor
    scores: Tensor


class MoeDecoder(Decoder):
    """A `Decoder` with a `MoeLayer` in the place of the later blocks' `ffn`."""

    def __init__(self, shape: MoeShape) -> None:
        super().__init__(shape)
        for block in self.blocks[shape.dense_layers :]:
            block.ffn = MoeLayer(shape)
        if shape.qk_norm:
            for block in self.blocks:
                block.attention = NormedAttention(shape)

    def expert_layers(self) -> list[MoeLayer]:
        """Those of the blocks that have one."""
        return [block.ffn for block in self.blocks if isinstance(block.ffn, MoeLayer)]


class NormedAttention(Attention):
    """Attention with RMSNorm on each head's queries and keys."""

    def __init__(self, shape: MoeShape) -> None:
        super().__init__(shape)
        self.q_norm = nn.RMSNorm(shape.head_width, eps=1e-6)
        self.k_norm = nn.RMSNorm(shape.head_width, eps=1e-6)

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        q, k, v = (project(hidden).unflatten(-1, (-1, self.head_width)) for project in (self.q, self.k, self.v))
        q, k = self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2)
        mixed = self.core(rotate(q, positions), rotate(k, positions), v.transpose(1, 2))
        return self.o(mixed.transpose(1, 2).flatten(2))


class MoeLayer(nn.Module):
    """Router, experts, and perhaps one expert for all; (..., hidden) in and out.

    Modules: `router` with a linear `gate`, `experts`, and `shared` (`gate`, `up`, `down`) or None. After a call
    `routing` is what was chosen, for the loss.
    """

    def __init__(self, shape: MoeShape) -> None:
        super().__init__()
        self.router = Router(shape)
        self.experts = Experts(shape)
        self.shared = FeedForward(replace(shape, ffn=shape.shared_ffn)) if shape.shared_ffn else None
        self.routing: Routing | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.flatten(0, -2)
        weights, experts, _ = self.routing = self.router(tokens)
        order = experts.flatten().argsort(stable=True)
        source = order // experts.shape[1]
        counts = experts.flatten().bincount(minlength=self.routing.scores.shape[1])
        made = self.experts(tokens[source], counts) * weights.flatten()[order].unsqueeze(1)
        output = torch.zeros_like(tokens).index_add(0, source, made)
        return (output if self.shared is None else output + self.shared(tokens)).view_as(hidden)


class Router(nn.Module):
    """(tokens, hidden) -> `Routing`: the `top_k` largest of a softmax; of equal ones the first."""

    def __init__(self, shape: MoeShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.top_k, self.normed = shape.top_k, shape.normed_weights

    def forward(self, tokens: Tensor) -> Routing:
        scores = self.gate(tokens).softmax(-1)
        experts = scores.detach().argsort(dim=-1, descending=True, stable=True)[:, : self.top_k]
        weights = scores.gather(1, experts)
        return Routing(weights / weights.sum(1, keepdim=True) if self.normed else weights, experts, scores)


class Experts(nn.Module):
    """SwiGLU of each expert on its own rows: `gate`, `up` (experts, ffn, hidden) and `down` (experts, hidden, ffn).

    How many experts there are is taken from the parameters, so that a rank may hold some of them only, as the plain
    part of a distributed parameter.
    """

    def __init__(self, shape: MoeShape) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(shape.experts, shape.expert_ffn, shape.hidden))
        self.up = nn.Parameter(torch.empty(shape.experts, shape.expert_ffn, shape.hidden))
        self.down = nn.Parameter(torch.empty(shape.experts, shape.hidden, shape.expert_ffn))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """(rows, hidden) sorted by expert and (experts,) how many each has -> (rows, hidden)."""
        matrices = zip(*(_plain(one) for one in (self.gate, self.up, self.down)), strict=True)
        parts = zip(rows.split(counts.tolist()), matrices, strict=True)
        return torch.cat([(F.silu(x @ gate.T) * (x @ up.T)) @ down.T for x, (gate, up, down) in parts])


def _plain(parameter: Tensor) -> Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def moe_decoder(shape: MoeShape = MoeShape(), *, seed: int = 0) -> MoeDecoder:
    """A `MoeDecoder` in fp32 on the CPU with the weights of `seed`; `decoder_batch` makes its batches."""
    return build(lambda: MoeDecoder(shape), seed)


def balancing_loss(scores: Tensor, experts: Tensor) -> Tensor:
    """Experts times the sum over them of share of assignments times mean score: 1 where all have equally many."""
    number = scores.shape[1]
    shares = experts.flatten().bincount(minlength=number) / experts.numel()
    return number * (shares * scores.mean(0)).sum()


def moe_loss(
    model: MoeDecoder,
    batch: Batch,
    *,
    balance: Callable[[Tensor, Tensor], Tensor] = balancing_loss,
    coefficient: float = 0.1,
    share: float = 1.0,
) -> Tensor:
    """Cross entropy of the next token, averaged over all tokens, and the balancing loss of each layer of experts.

    Args:
        balance: of a layer's scores and choices.
        coefficient: of the balancing losses.
        share: of the cross entropy, where a rank has part of the batch and gives part of the loss.
    """
    entropy = F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
    routings = [layer.routing for layer in model.expert_layers()]
    return share * entropy + coefficient * sum(balance(one.scores, one.experts) for one in routings)
