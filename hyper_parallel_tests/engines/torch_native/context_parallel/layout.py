"""Which queries meet which keys in the three methods of context parallelism, as plain index arithmetic."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hyper_parallel_tests.engines.torch_native.context_parallel.split import context_parallel_indices

METHODS = ("ulysses", "all_gather", "ring")


class Tile(NamedTuple):
    """See the port."""

    q_positions: Tensor
    q_heads: Tensor
    k_positions: Tensor
    kv_heads: Tensor


def heads_per_rank(what: str, heads: int, cp_size: int) -> int:
    """Heads that each rank has when all are dealt out.

    Raises:
        ValueError: the ranks do not divide them.
    """
    if heads % cp_size:
        raise ValueError(
            f"{what} has {heads} heads, which cannot be dealt out evenly to {cp_size} ranks; "
            "take a method that keeps all heads on each rank (all_gather, ring, ulysses_degree=1)"
        )
    return heads // cp_size


def queries_per_key_head(heads: int, kv_heads: int) -> int:
    """Query heads that share one key head.

    Raises:
        ValueError: it is not the same number for each.
    """
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} key heads evenly: expected a divisor")
    return heads // kv_heads


def ring_source(rank: int, step: int, cp_size: int) -> int:
    """Whose keys ``rank`` has at ``step``, when each step passes them on to the next rank."""
    return (rank - step) % cp_size


def context_parallel_layout(
    seq_len: int, heads: int, kv_heads: int, cp_size: int, *, method: str, load_balance: bool = False
) -> list[list[Tile]]:
    """See the port."""
    queries_per_key_head(heads, kv_heads)
    parts = context_parallel_indices(seq_len, cp_size, load_balance=load_balance)
    everything, all_q, all_kv = torch.arange(seq_len), torch.arange(heads), torch.arange(kv_heads)
    if method == "ulysses":
        q_heads = all_q.split(heads_per_rank("q", heads, cp_size))
        own_kv = all_kv.split(heads_per_rank("k", kv_heads, cp_size))
        return [[Tile(everything, q_heads[rank], everything, own_kv[rank])] for rank in range(cp_size)]
    if method == "all_gather":
        return [[Tile(parts[rank], all_q, everything, all_kv)] for rank in range(cp_size)]
    if method == "ring":
        return [
            [Tile(parts[rank], all_q, parts[ring_source(rank, step, cp_size)], all_kv) for step in range(cp_size)]
            for rank in range(cp_size)
        ]
    raise ValueError(unknown_method(method))


def unknown_method(method: str) -> str:
    """What to tell who asked for a method that there is not."""
    return f"unknown method {method!r}: expected one of {', '.join(METHODS)}"
