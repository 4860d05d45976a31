"""Attention on one rank: plain softmax over the keys that a query may see."""

from __future__ import annotations

import torch
from torch import Tensor

from hyper_parallel_tests.engines.torch_native.context_parallel.layout import queries_per_key_head


def visible(
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    causal: bool,
    q_documents: Tensor | None = None,
    k_documents: Tensor | None = None,
    padding: Tensor | None = None,
) -> Tensor:
    """Which keys each query sees: (batch or 1, queries, keys), bool.

    Args:
        q_positions: (queries,), in the whole sequence.
        k_positions: (keys,), in the whole sequence.
        causal: whether keys after the query are hidden.
        q_documents: (batch, queries), or None where there is one document.
        k_documents: (batch, keys), likewise.
        padding: (batch, keys), True where the key is padding; None where none is.
    """
    seen = torch.ones(1, len(q_positions), len(k_positions), dtype=torch.bool, device=q_positions.device)
    if causal:
        seen = seen & (k_positions[None, :] <= q_positions[:, None])
    if q_documents is not None:
        seen = seen & (q_documents[:, :, None] == k_documents[:, None, :])
    if padding is not None:
        seen = seen & ~padding[:, None, :]
    return seen


def grouped(q: Tensor, kv_heads: int) -> Tensor:
    """(batch, heads, queries, width) -> (batch, kv_heads, heads per key head, queries, width)."""
    return q.unflatten(1, (kv_heads, queries_per_key_head(q.shape[1], kv_heads)))


def scores(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    """Scaled products of grouped queries (b, g, r, q, d) with keys (b, g, k, d): (b, g, r, q, k)."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return torch.einsum("bgrqd,bgkd->bgrqk", q, k) * factor


def probabilities(products: Tensor, seen: Tensor) -> Tensor:
    """Softmax over the keys seen, (b, g, r, q, k); zeros where none is.

    What is hidden gets the lowest number and not minus infinity, whose softmax has no gradient in an empty row.
    """
    seen = seen[:, None, None]
    lowest = torch.finfo(products.dtype).min
    return products.masked_fill(~seen, lowest).softmax(-1) * seen


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float | None = None) -> Tensor:
    """Attention in plain operations, through which autograd finds its way: (batch, heads, queries, value width).

    Args:
        q: (batch, heads, queries, width).
        k: (batch, kv_heads, keys, width).
        v: (batch, kv_heads, keys, value width).
        seen: (batch or 1, queries, keys), of ``visible``.
        scale: None means width ** -0.5.
    """
    weights = probabilities(scores(grouped(q, k.shape[1]), k, scale), seen)
    return torch.einsum("bgrqk,bgkd->bgrqd", weights, v).flatten(1, 2)
