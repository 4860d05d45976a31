"""Attention over a divided sequence, by each of three methods."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from hyper_parallel_tests.engines.torch_native.context_parallel.layout import (
    METHODS,
    heads_per_rank,
    queries_per_key_head,
    unknown_method,
)
from hyper_parallel_tests.engines.torch_native.context_parallel.local import attend, visible
from hyper_parallel_tests.engines.torch_native.context_parallel.movement import (
    gather_sequence,
    heads_to_sequence,
    sequence_to_heads,
)
from hyper_parallel_tests.engines.torch_native.context_parallel.ring import Ring, ring_attention
from hyper_parallel_tests.engines.torch_native.context_parallel.split import Split, split_over
from hyper_parallel_tests.engines.torch_native.context_parallel.transfers import ToHeads, ToWhole, moved_together

# Of (batch, heads, tokens, width).
HEADS, TOKENS = 1, 2


def context_parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    device_mesh: DeviceMesh,
    *,
    method: str,
    causal: bool = False,
    documents: Tensor | None = None,
    padding: Tensor | None = None,
    load_balance: bool = False,
    seq_len: int | None = None,
    overlap: bool = False,
    scale: float | None = None,
) -> Tensor:
    """See the port.

    Sources: Jacobs et al., "DeepSpeed Ulysses", arXiv 2309.14509; Llama 3's all-gather, arXiv 2407.21783, 3.3.2; the
    ring's are with it.
    """
    split = split_over(device_mesh, q.shape[TOKENS], seq_len, load_balance)
    _check(method, q, k, v, split)
    masks = _Masks(split, q.device, causal, documents, padding)
    if method == "ulysses":
        if overlap:
            q, k, v = moved_together((q, k, v), ToHeads(split, TOKENS, HEADS))
        else:
            q, k, v = (sequence_to_heads(one, TOKENS, HEADS, split) for one in (q, k, v))
        return heads_to_sequence(attend(q, k, v, masks.whole(), scale), TOKENS, HEADS, split)
    if method == "all_gather":
        if overlap:
            k, v = moved_together((k, v), ToWhole(split, TOKENS))
        else:
            k, v = (gather_sequence(one, TOKENS, split) for one in (k, v))
        return attend(q, k, v, masks.own_rows(), scale)
    return ring_attention(q, k, v, Ring(split, masks.own_rows_to, scale, overlap))


def _check(method: str, q: Tensor, k: Tensor, v: Tensor, split: Split) -> None:
    """Refuses what no rank could compute, before anything is sent."""
    queries_per_key_head(q.shape[HEADS], k.shape[HEADS])
    if method not in METHODS:
        raise ValueError(unknown_method(method))
    if method == "ulysses":
        for what, tensor in (("q", q), ("k", k), ("v", v)):
            heads_per_rank(what, tensor.shape[HEADS], split.size)


class _Masks:
    """Which keys are seen, for any part of the sequence; documents and padding of all ranks are gathered first."""

    def __init__(
        self, split: Split, device: torch.device, causal: bool, documents: Tensor | None, padding: Tensor | None
    ) -> None:
        self._split, self._device, self._causal = split, device, causal
        self._documents = None if documents is None else gather_sequence(documents, 1, split)
        self._padding = None if padding is None else gather_sequence(padding, 1, split)

    def whole(self) -> Tensor:
        """All queries, all keys."""
        return self._between(self._split.everything, self._split.everything)

    def own_rows(self) -> Tensor:
        """Own queries, all keys."""
        return self._between(self._split.own, self._split.everything)

    def own_rows_to(self, rank: int) -> Tensor:
        """Own queries, the keys of ``rank``."""
        return self._between(self._split.own, self._split.indices[rank])

    def _between(self, queries: Tensor, keys: Tensor) -> Tensor:
        queries, keys = queries.to(self._device), keys.to(self._device)
        return visible(
            queries,
            keys,
            causal=self._causal,
            q_documents=None if self._documents is None else self._documents[:, queries],
            k_documents=None if self._documents is None else self._documents[:, keys],
            padding=None if self._padding is None else self._padding[:, keys],
        )
