"""Collectives on strided tensors: right values in the view, nothing changed beside it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.domains.collectives.samples import DTYPES, factors, reduced
from hyper_parallel_tests.harness import contract

SHAPE = (4, 3)


class Strided:
    """A view of every second column of a transposed matrix, with the storage around it."""

    def __init__(self, values: Tensor) -> None:
        rows, columns = values.shape
        self.storage = torch.ones(2 * columns, rows, dtype=values.dtype, device=values.device)
        self.view = self.storage.t()[:, ::2]
        self.view.copy_(values)

    def holds(self, values: Tensor) -> bool:
        """Whether the view has these values and the storage beside it is as it was."""
        beside = self.storage.t()[:, 1::2]
        return torch.equal(self.view, values) and torch.equal(beside, torch.ones_like(beside))


def room(world, dtype: str, rows: int = SHAPE[0]) -> Strided:
    return Strided(torch.zeros(rows, SHAPE[1], dtype=DTYPES[dtype], device=world.device))


def all_reduce(engine, world, dtype, values) -> list[tuple[Strided, Tensor]]:
    mine = Strided(values[world.rank])
    engine.all_reduce(mine.view)
    return [(mine, reduced("sum", values))]


def all_gather(engine, world, dtype, values) -> list[tuple[Strided, Tensor]]:
    parts = [room(world, dtype) for _ in values]
    engine.all_gather([part.view for part in parts], Strided(values[world.rank]).view)
    return list(zip(parts, values, strict=True))


def all_gather_into_tensor(engine, world, dtype, values) -> list[tuple[Strided, Tensor]]:
    output = room(world, dtype, SHAPE[0] * world.size)
    engine.all_gather_into_tensor(output.view, Strided(values[world.rank]).view)
    return [(output, torch.cat(values))]


def reduce_scatter(engine, world, dtype, values) -> list[tuple[Strided, Tensor]]:
    output = room(world, dtype)
    engine.reduce_scatter(output.view, [Strided(values[world.rank]).view for _ in values])
    return [(output, reduced("sum", values))]


def reduce_scatter_tensor(engine, world, dtype, values) -> list[tuple[Strided, Tensor]]:
    rows = SHAPE[0] // world.size
    output = room(world, dtype, rows)
    engine.reduce_scatter_tensor(output.view, Strided(values[world.rank]).view)
    return [(output, reduced("sum", values)[rows * world.rank : rows * (world.rank + 1)])]


def all_to_all(engine, world, dtype, values) -> list[tuple[Strided, Tensor]]:
    parts = [room(world, dtype) for _ in values]
    engine.all_to_all([part.view for part in parts], [Strided(values[world.rank]).view for _ in values])
    return list(zip(parts, values, strict=True))


def all_to_all_single(engine, world, dtype, values) -> list[tuple[Strided, Tensor]]:
    output = room(world, dtype)
    engine.all_to_all_single(output.view, Strided(values[world.rank]).view)
    return [(output, torch.cat([tensor.chunk(world.size)[world.rank] for tensor in values]))]


def broadcast(engine, world, dtype, values) -> list[tuple[Strided, Tensor]]:
    mine = Strided(values[world.rank])
    engine.broadcast(mine.view, src=0)
    return [(mine, values[0])]


def gather(engine, world, dtype, values) -> list[tuple[Strided, Tensor]]:
    parts = [room(world, dtype) for _ in values] if world.rank == 0 else []
    engine.gather(Strided(values[world.rank]).view, [part.view for part in parts] or None, dst=0)
    return list(zip(parts, values, strict=world.rank == 0))


def scatter(engine, world, dtype, values) -> list[tuple[Strided, Tensor]]:
    output = room(world, dtype)
    parts = [Strided(tensor).view for tensor in values] if world.rank == 0 else None
    engine.scatter(output.view, parts, src=0)
    return [(output, values[world.rank])]


COLLECTIVES = {
    case.__name__: case
    for case in (
        all_reduce,
        all_gather,
        all_gather_into_tensor,
        reduce_scatter,
        reduce_scatter_tensor,
        all_to_all,
        all_to_all_single,
        broadcast,
        gather,
        scatter,
    )
}


@contract("COL-2-01")
@pytest.mark.parametrize("name", COLLECTIVES)
def test_strided_tensors(engine, world, name):
    """Strided inputs and outputs give the same values as dense ones, in every dtype, and their gaps stay."""
    wrong = []
    for dtype in DTYPES:
        values = [factors(world, rank, SHAPE, dtype) for rank in range(world.size)]
        for output, expected in COLLECTIVES[name](engine, world, dtype, values):
            if not output.holds(expected):
                wrong.append(f"{dtype}: in the view {output.view.tolist()}, expected {expected.tolist()}")
    # Only now: a rank that left early would keep the others waiting.
    assert not wrong, "\n".join(wrong)
