"""The kinds of schedules: which stages each rank has, and in which order it computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hyper_parallel_tests.domains.pipeline_parallel.plans import one_f_one_b

__all__ = ["KINDS", "Kind", "Table", "each_common_kind", "each_kind"]

Table = dict[int, list[str]]


def _loop(rank: int, ranks: int) -> tuple[int, int]:
    return rank, rank + ranks


def _one(rank: int, ranks: int) -> tuple[int]:
    return (rank,)


def _shape_of_a_v(rank: int, ranks: int) -> tuple[int, int]:
    return rank, 2 * ranks - 1 - rank


@dataclass(frozen=True)
class Kind:
    """One kind of schedule.

    Attributes:
        member: of the engine, which makes it.
        table: the name of its table in the port of schedules; empty for a file of the cases' own, and for 1F1B, of
            which PyTorch's table has a micro-batch too many.
        split: whether the backward is in two parts.
    """

    member: str
    table: str = ""
    homes: Any = _one
    split: bool = False

    def stages_of(self, rank: int, ranks: int) -> tuple[int, ...]:
        """The stages of a rank, in their order."""
        return self.homes(rank, ranks)

    def stage_num(self, ranks: int) -> int:
        return ranks * len(self.homes(0, ranks))

    def rank_of(self, stage: int, ranks: int) -> int:
        return next(rank for rank in range(ranks) if stage in self.homes(rank, ranks))

    def plan(self, engine: Any, ranks: int, micro_batches: int) -> Table:
        """The computations of each rank, in order."""
        if self.table:
            return engine.schedule_table(self.table, ranks, micro_batches, with_communication=False)
        return _late_weights(ranks, micro_batches) if self.split else one_f_one_b(ranks, micro_batches)

    def make(self, engine: Any, stages: Sequence[Any], micro_batches: int, folder: Path, **options: Any) -> Any:
        """The engine's schedule of this rank's stages; `folder` is where a file of it goes."""
        given = stages[0] if len(stages) == 1 else list(stages)
        schedule = getattr(engine, self.member)
        if self.member != "ScheduleFromCsv":
            return schedule(given, micro_batches, **options)
        path = folder / f"order_of_{min(one.stage_index for one in stages)}.csv"
        _write_csv(path, self.plan(engine, given.num_stages, micro_batches))
        return schedule(given, micro_batches, path, **options)


KINDS = {
    "gpipe": Kind("ScheduleGPipe", "GPipe"),
    "1f1b": Kind("Schedule1F1B"),
    "interleaved": Kind("ScheduleInterleaved1F1B", "Interleaved1F1B", _loop),
    "zero_bubble": Kind("ScheduleInterleavedZeroBubble", "InterleavedZeroBubble", _loop, split=True),
    "zero_bubble_v": Kind("ScheduleZBVZeroBubble", "ZBVZeroBubble", _shape_of_a_v, split=True),
    "csv": Kind("ScheduleFromCsv", split=True),
}
COMMON = ["gpipe", "1f1b", "interleaved"]
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
each_common_kind = pytest.mark.parametrize("kind", [KINDS[one] for one in COMMON], ids=COMMON)


def _write_csv(path: Path, table: Table) -> None:
    """A line a rank, an action a cell."""
    path.write_text("".join(",".join(table[rank]) + "\n" for rank in sorted(table)))


def _late_weights(ranks: int, micro_batches: int) -> Table:
    """An order that no schedule has by name: the gradients of all inputs, then those of all weights, backwards."""
    micros = range(micro_batches)
    return {
        rank: [f"{rank}F{one}" for one in micros]
        + [f"{rank}I{one}" for one in micros]
        + [f"{rank}W{one}" for one in reversed(micros)]
        for rank in range(ranks)
    }
