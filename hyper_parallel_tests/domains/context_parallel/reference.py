"""What the cases expect, computed on one card over the whole sequence and without any engine."""

from __future__ import annotations

import torch
from torch import Tensor


def positions_of(rank: int, size: int, tokens: int, load_balance: bool) -> list[int]:
    """The positions that a rank holds: chunk `rank`, or with `load_balance` the one at the other end too."""
    chunks = 2 * size if load_balance else size
    short, longer = divmod(tokens, chunks)
    starts = [chunk * short + min(chunk, longer) for chunk in range(chunks + 1)]
    own = [rank, chunks - 1 - rank] if load_balance else [rank]
    return [position for chunk in own for position in range(starts[chunk], starts[chunk + 1])]


def part(tensor: Tensor, dim: int, rank: int, size: int, load_balance: bool = False) -> Tensor:
    """What a rank holds of a tensor along `dim`."""
    return tensor.index_select(dim, torch.tensor(positions_of(rank, size, tensor.shape[dim], load_balance), dtype=int))


def seen_keys(
    tokens: int, *, causal: bool = False, documents: Tensor | None = None, padding: Tensor | None = None
) -> Tensor:
    """Which keys each query sees, (batch or 1, tokens, tokens)."""
    seen = torch.ones(1, tokens, tokens, dtype=torch.bool)
    if causal:
        seen = seen.tril()
    if documents is not None:
        seen = seen & (documents.unsqueeze(2) == documents.unsqueeze(1))
    if padding is not None:
        seen = seen & ~padding.unsqueeze(1)
    return seen


def attention_weights(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """Softmax over the seen keys, (batch, heads, queries, keys); a query that sees none has zeros."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    seen = seen.unsqueeze(1)
    some = seen.any(-1, keepdim=True)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.masked_fill(~seen & some, -torch.inf).softmax(-1) * some


def attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Attention with grouped queries; q (batch, heads, tokens, width), k and v with fewer heads perhaps."""
    return attention_weights(q, k, seen) @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)


def index_scores(index_q: Tensor, index_k: Tensor, weights: Tensor) -> Tensor:
    """The indexer's scores, (batch, queries, keys), one query after the other."""
    rows = [
        (weights[:, t, :, None] * (index_q[:, t] @ index_k.transpose(1, 2)).clamp(min=0)).sum(1)
        for t in range(index_q.shape[1])
    ]
    return torch.stack(rows, 1)


def best_keys(scores: Tensor, topk: int) -> Tensor:
    """For each query the best keys not after it, (batch, queries, topk): -1 where there are no more."""
    chosen = torch.full((*scores.shape[:2], topk), -1)
    for row, matrix in enumerate(scores.tolist()):
        for query, values in enumerate(matrix):
            # The earlier of two equal ones comes first, since sorting keeps their order.
            order = sorted(range(query + 1), key=lambda key: -values[key])[:topk]
            chosen[row, query, : len(order)] = torch.tensor(order)
    return chosen


def chosen_keys(indices: Tensor, tokens: int) -> Tensor:
    """The same as a mask, (batch, queries, keys)."""
    return torch.stack([(indices == key).any(-1) for key in range(tokens)], -1)


def indexer_loss(q: Tensor, k: Tensor, scores: Tensor, seen: Tensor) -> Tensor:
    """Mean over queries and batch of KL(mean attention of the heads || softmax of the scores), over the seen keys."""
    target = attention_weights(q.detach(), k.detach(), seen).mean(1)
    total = scores.new_zeros(())
    for row in range(len(scores)):
        for query in range(scores.shape[1]):
            keys = seen[row % len(seen), query].nonzero().flatten()
            p = target[row, query, keys]
            total = total + (p * (p.log() - scores[row, query, keys].log_softmax(-1))).sum()
    return total / (scores.shape[0] * scores.shape[1])
