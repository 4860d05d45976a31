"""The figures on paper: CSV files and a table for the terminal."""

from __future__ import annotations

import csv
import io
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

from tools.bench.figures import QUANTITIES, Key, Spread


def rows_csv(rows: Sequence[Any]) -> str:
    """Dataclasses of one kind, one a row, their fields as columns."""
    return _csv([asdict(row) for row in rows])


def summary_csv(summary: Mapping[Key, Spread]) -> str:
    """Every spread with what it is of, one a row."""
    return _csv([asdict(key) | asdict(spread) for key, spread in summary.items()])


def table(summary: Mapping[Key, Spread]) -> str:
    """Median and range by quantity and ranks, the contenders side by side."""
    contenders = list(dict.fromkeys(key.contender for key in summary))
    rows = [["", "ranks", *contenders]]
    for quantity, title in QUANTITIES.items():
        for ranks in sorted({key.ranks for key in summary if key.quantity == quantity}):
            cells = [summary.get(Key(quantity, ranks, contender)) for contender in contenders]
            rows.append([title, str(ranks), *("-" if cell is None else _cell(cell) for cell in cells)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def machine() -> str:
    """Where the figures are from, in one line."""
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    torch = metadata.version("torch")
    return f"{cores} cores, Python {platform.python_version()}, torch {torch}, load {load:.1f} at the start"


def short(value: float) -> str:
    """Three digits that matter: 0.412, 1.53, 9.31, 10.2, 4710."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}"


def _cell(spread: Spread) -> str:
    return f"{short(spread.median)} [{short(spread.low)} .. {short(spread.high)}]"


def _csv(rows: Sequence[Mapping[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _plain(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value
