"""The table of a dry run: estimated and measured bytes side by side."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hyper_parallel_tests.models.held_bytes import Held

__all__ = ["Row", "write_table"]


class Row(NamedTuple):
    """One rank of one layout."""

    model: str
    layout: str
    rank: int
    estimated: Any
    measured: Held

    @property
    def pairs(self) -> dict[str, tuple[int, int]]:
        """Kind of memory -> bytes estimated, bytes measured."""
        return {kind: (getattr(self.estimated, kind), getattr(self.measured, kind)) for kind in Held._fields}

    @property
    def agrees(self) -> bool:
        return all(ours == theirs for ours, theirs in self.pairs.values())

    def __str__(self) -> str:
        apart = [f"{kind} {ours}, measured {theirs}" for kind, (ours, theirs) in self.pairs.items() if ours != theirs]
        return f"{self.model} {self.layout} rank {self.rank}: estimated {'; '.join(apart) or 'as measured'}"


def write_table(folder: Path, rows: Sequence[Row]) -> None:
    """Writes `memory.md` and `memory.csv`."""
    columns = [f"{kind}, {which}" for kind in Held._fields for which in ("estimated", "measured")]
    lines = [[row.model, row.layout, row.rank, *(size for pair in row.pairs.values() for size in pair)] for row in rows]
    head = ["model", "layout", "rank", *columns]
    with (folder / "memory.csv").open("w", newline="") as file:
        csv.writer(file).writerows([head, *lines])
    ruled = [head, ["---"] * 3 + ["---:"] * len(columns), *lines]
    (folder / "memory.md").write_text("".join(f"| {' | '.join(map(str, line))} |\n" for line in ruled))
