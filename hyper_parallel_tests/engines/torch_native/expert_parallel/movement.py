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


def exchange_counts(rows: Tensor, counts: Tensor, device_mesh: DeviceMesh) -> Exchange:
    """Tells each rank how many rows come from each, for each of its experts; collective.

    A rank whose counts are not those of its rows tells -1 in their place, so that all ranks raise and none waits for
    rows.

    Raises:
        ValueError: on every rank, if counts of one are not those of its rows.
    """
    size = device_mesh.size()
    each = len(experts_of_rank(len(counts), size, 0))
    problem = _problem(rows, counts)
    incoming = torch.empty_like(counts)
    told = torch.full_like(counts, -1) if problem else counts
    dist.all_to_all_single(incoming, told, group=device_mesh.get_group())
    wrong = (incoming.view(size, each) < 0).any(1).nonzero().flatten().tolist()
    if wrong:
        raise ValueError(problem or f"the counts of ranks {wrong} are not those of their rows: see the errors there")
    return Exchange(counts.view(size, each), incoming.view(size, each), device_mesh.get_group())


def _problem(rows: Tensor, counts: Tensor) -> str:
    """How counts differ from the rows that they are of, empty if they do not."""
    if (counts < 0).any():
        return f"counts {counts.tolist()}: expected each expert's number of rows, none below zero"
    if int(counts.sum()) != len(rows):
        return f"counts of {int(counts.sum())} rows in all for {len(rows)} rows: expected each expert's number of rows"
    return ""


class Dispatch(NamedTuple):
    """See the port; ``exchange`` is the way that the rows came."""

    rows: Tensor
    counts: Tensor
    sent: list[int]
    received: list[int]
    exchange: Exchange


def dispatch_tokens(rows: Tensor, counts: Tensor, device_mesh: DeviceMesh) -> Dispatch:
    """See the port."""
    exchange = exchange_counts(rows, counts, device_mesh)
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
