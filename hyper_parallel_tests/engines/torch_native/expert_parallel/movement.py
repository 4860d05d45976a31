"""Rows on their way to the ranks of their experts, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh

from hyper_parallel_tests.engines.torch_native.differentiable_collectives import differentiable_all_to_all

__all__ = [
    "Dispatch",
    "Exchange",
    "check_counts",
    "combine_tokens",
    "dispatch_tokens",
    "exchange_counts",
    "experts_of_rank",
]


def experts_of_rank(num_experts: int, ep_size: int, rank: int) -> range:
    """See the port."""
    if not 0 <= rank < ep_size:
        raise ValueError(f"rank {rank} of {ep_size}: expected one of 0 to {ep_size - 1}")
    if num_experts % ep_size:
        raise ValueError(
            f"{num_experts} experts do not divide among {ep_size} ranks: choose an expert-parallel degree that divides "
            f"{num_experts}"
        )
    each = num_experts // ep_size
    return range(rank * each, (rank + 1) * each)


@dataclass(frozen=True)
class Exchange:
    """Which rows go where: what a rank has to know before any of them move.

    Attributes:
        outgoing: (ranks, experts of each), int64: rows of this rank for each expert.
        incoming: (ranks, own experts), int64: rows of each rank for this rank's experts.
        group: of the ranks.
    """

    outgoing: Tensor
    incoming: Tensor
    group: ProcessGroup

    @property
    def sent(self) -> list[int]:
        """Rows that go to each rank."""
        return self.outgoing.sum(1).tolist()

    @property
    def received(self) -> list[int]:
        """Rows that come from each rank."""
        return self.incoming.sum(1).tolist()

    def by_expert(self) -> Tensor:
        """The order that sorts arrived rows, which lie (rank, expert), by (expert, rank)."""
        own = torch.arange(self.incoming.shape[1], device=self.incoming.device)
        return own.repeat(len(self.incoming)).repeat_interleave(self.incoming.flatten()).argsort(stable=True)

    def by_rank(self) -> Tensor:
        """The inverse of ``by_expert``."""
        return self.by_expert().argsort()


def check_counts(rows: Tensor, counts: Tensor) -> None:
    """Holds counts to the rows that they are of."""
    if int(counts.sum()) != len(rows):
        raise ValueError(
            f"counts of {int(counts.sum())} rows in all for {len(rows)} rows: expected each expert's number of rows"
        )


def exchange_counts(counts: Tensor, device_mesh: DeviceMesh) -> Exchange:
    """Tells each rank how many rows come from each, for each of its experts; collective."""
    size = device_mesh.size()
    each = len(experts_of_rank(len(counts), size, 0))
    incoming = torch.empty_like(counts)
    dist.all_to_all_single(incoming, counts, group=device_mesh.get_group())
    return Exchange(counts.view(size, each), incoming.view(size, each), device_mesh.get_group())


class Dispatch(NamedTuple):
    """See the port; ``exchange`` is the way that the rows came."""

    rows: Tensor
    counts: Tensor
    sent: list[int]
    received: list[int]
    exchange: Exchange


def dispatch_tokens(rows: Tensor, counts: Tensor, device_mesh: DeviceMesh) -> Dispatch:
    """See the port."""
    check_counts(rows, counts)
    exchange = exchange_counts(counts, device_mesh)
    sent, received = exchange.sent, exchange.received
    arrived = differentiable_all_to_all(rows.contiguous(), received, sent, group=exchange.group)
    return Dispatch(arrived.index_select(0, exchange.by_expert()), exchange.incoming.sum(0), sent, received, exchange)


def combine_tokens(rows: Tensor, dispatch: Dispatch) -> Tensor:
    """See the port."""
    return functional.wait_tensor(send_back(rows, dispatch))


def send_back(rows: Tensor, dispatch: Dispatch) -> Tensor:
    """``combine_tokens`` that is waited for by whoever first reads it."""
    leaving = rows.index_select(0, dispatch.exchange.by_rank())
    return functional.all_to_all_single(leaving, dispatch.sent, dispatch.received, dispatch.exchange.group)
