"""Rows for experts that ranks hold, each of which tells where it comes from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.harness import World

# Divided by two and by four ranks, with more than one on each.
EXPERTS = 8
WIDTH = 4

LOADS = ("even", "uneven", "empty_expert", "all_to_one", "one_row", "rank_without_rows", "nothing")


def counts_of(load: str, rank: int) -> list[int]:
    """How many rows a rank has for each expert."""
    return {
        "even": [2] * EXPERTS,
        "uneven": [(3 * rank + 2 * expert) % 5 for expert in range(EXPERTS)],
        "empty_expert": [0 if expert == 1 else rank + 1 for expert in range(EXPERTS)],
        "all_to_one": [0] * (EXPERTS - 1) + [4],
        "one_row": [int(expert == (5 * rank + 3) % EXPERTS) for expert in range(EXPERTS)],
        "rank_without_rows": [0 if rank == 0 else 1] * EXPERTS,
        "nothing": [0] * EXPERTS,
    }[load]


def rows_of(load: str, rank: int, expert: int) -> Tensor:
    """A rank's rows for one expert, (rows, WIDTH): rank, expert, number of the row, and a number that is never zero."""
    number = torch.arange(counts_of(load, rank)[expert], dtype=torch.float32)
    columns = (torch.full_like(number, rank), torch.full_like(number, expert), number, number + 10 * rank + expert + 1)
    return torch.stack(columns, 1)


def outgoing(world: World, load: str) -> tuple[Tensor, Tensor]:
    """This rank's rows, sorted by expert, and their counts."""
    rows = torch.cat([rows_of(load, world.rank, expert) for expert in range(EXPERTS)])
    return rows.to(world.device), torch.tensor(counts_of(load, world.rank), device=world.device)


def own_experts(world: World) -> range:
    """Those that this rank holds."""
    each = EXPERTS // world.size
    return range(world.rank * each, (world.rank + 1) * each)


def incoming(world: World, load: str) -> tuple[Tensor, list[int]]:
    """The rows that must come to this rank's experts, and their counts."""
    parts = [[rows_of(load, rank, expert) for rank in range(world.size)] for expert in own_experts(world)]
    return torch.cat(sum(parts, [])).to(world.device), [sum(map(len, rows)) for rows in parts]


def mesh_of(world: World) -> Any:
    return world.mesh(ep=world.size)
