"""The ledger: where every number comes from by which a case may differ from its baseline, or between which it may lie.

    ledger["fsdp_1d_fp32"]  ->  Tolerance(loss=1e-05, norm=1e-05, tensor=1e-05, ...)
    ledger["endurance_growth_threads"]  ->  Band(low=-1.0, high=1.0, ...)

Both are frozen and only the ledger makes them: a case names its configuration and brings no number.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Band", "Ledger", "LedgerError", "Tolerance", "ledger", "load", "verified"]

_NUMBERS = ("loss", "norm", "tensor")
_TEXTS = ("source", "reason")
_OPTIONAL = {"relative": 0.0}
_ENDS = ("low", "high")
_SEAL = object()


class LedgerError(ValueError):
    """The ledger file, or a request to it, is wrong; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What one configuration may differ by from its baseline. Made by the ledger only.

    Attributes:
        name: the configuration's name in the ledger.
        loss: absolute, of a step's loss.
        norm: absolute, of a step's global gradient norm.
        tensor: absolute, of each tensor element.
        relative: share of the expected element's magnitude, added to `tensor`.
        source: where the numbers come from.
        reason: why they are right.
    """

    name: str
    loss: float
    norm: float
    tensor: float
    relative: float
    source: str
    reason: str
    seal: InitVar[object] = None

    def __post_init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError(
                'a Tolerance comes from the ledger: use ledger["<configuration>"]; '
                "a configuration without a row gets one in judging/ledger, with source and reason"
            )

    def __repr__(self) -> str:
        relative = f", relative={self.relative:g}" if self.relative else ""
        return f"{self.name}(loss={self.loss:g}, norm={self.norm:g}, tensor={self.tensor:g}{relative})"


@dataclass(frozen=True, slots=True)
class Band:
    """Between which numbers a measured one may lie, such as a ratio or a growth. Made by the ledger only.

    Attributes:
        name: its name in the ledger.
        low, high: the ends, which belong to it.
        source: where the numbers come from.
        reason: why they are right.
    """

    name: str
    low: float
    high: float
    source: str
    reason: str
    seal: InitVar[object] = None

    def __post_init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError(
                'a Band comes from the ledger: use ledger["<name>"]; '
                "a quantity without a row gets one in judging/ledger, with source and reason"
            )

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __repr__(self) -> str:
        return f"{self.name}({self.low:g} to {self.high:g})"


class Ledger(Mapping[str, Any]):
    """A `Tolerance` or a `Band` by its name, read once; `load` makes one."""

    def __init__(self, rows: Mapping[str, Tolerance | Band]) -> None:
        self._rows = dict(rows)

    def __getitem__(self, name: str) -> Any:
        if name in self._rows:
            return self._rows[name]
        near = difflib.get_close_matches(str(name), self._rows, n=3, cutoff=0.4)
        hint = f"near matches: {', '.join(near)}" if near else f"it has {', '.join(self._rows)}"
        raise LedgerError(f"the ledger has no configuration {name!r}; {hint}")

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def load(folder: Path) -> Ledger:
    """Read and validate the files of a ledger: common.toml, and <domain>.toml for each domain that the target sees.

    Raises:
        LedgerError: no TOML, an unknown or missing key, a number that is negative or not finite, an empty
            reason or source, a configuration in two files; all faults of all files are listed.
    """
    rows: dict[str, Any] = {}
    faults: list[str] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            faults.append(f"{path.name} is no valid TOML: {error}")
            continue
        found = [fault for name, row in table.items() for fault in _faults(name, row)]
        found += [f"[{name}] is in another file already" for name in table if name in rows]
        faults += [f"{path.name}: {fault}" for fault in found]
        rows |= table
    if not rows and not faults:
        faults = [f"{folder.name} has no rows"]
    if faults:
        raise LedgerError("; ".join(faults))
    return Ledger({name: _made(name, row) for name, row in rows.items()})


def _made(name: str, row: dict[str, Any]) -> Tolerance | Band:
    if _is_band(row):
        return Band(name=name, **row, seal=_SEAL)
    return Tolerance(name=name, **(_OPTIONAL | row), seal=_SEAL)


def _is_band(row: dict[str, Any]) -> bool:
    return not row.keys().isdisjoint(_ENDS)


def _faults(name: str, row: Any) -> Iterator[str]:
    if not isinstance(row, dict):
        yield f"{name}: expected a table [{name}], found {row!r}"
        return
    numbers, optional = (_ENDS, {}) if _is_band(row) else (_NUMBERS, _OPTIONAL)
    known = {*numbers, *_TEXTS, *optional}
    for key in row.keys() - known:
        yield f"[{name}] has the unknown key {key!r}; known are {', '.join(sorted(known))}"
    for key in (*numbers, *_TEXTS):
        if key not in row:
            yield f"[{name}] lacks {key}"
    for key in (*numbers, *optional):
        value = row.get(key, 0.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            yield f"[{name}] {key} must be a number, found {value!r}"
        elif not math.isfinite(value) or (value < 0 and not _is_band(row)):
            yield f"[{name}] {key} must be finite{'' if _is_band(row) else ' and not negative'}, found {value!r}"
        elif key == "high" and isinstance(row.get("low"), (int, float)) and value < row["low"]:
            yield f"[{name}] high must not be below low, found {row['low']!r} to {value!r}"
    for key in _TEXTS:
        if key in row and not (isinstance(row[key], str) and row[key].strip()):
            yield f"[{name}] {key} must say something, found {row[key]!r}"


ledger = load(Path(__file__).with_name("ledger"))
"""The project's ledger."""

_ORIGINALS = {name: str(tolerance) for name, tolerance in ledger.items()}


def verified(tolerance: object) -> Tolerance:
    """`tolerance` itself, after making sure that it is the ledger's own and unchanged.

    Raises:
        TypeError: it is a plain number, from elsewhere, or was tampered with.
    """
    if not isinstance(tolerance, Tolerance):
        raise TypeError(f'expected a tolerance, e.g. ledger["fsdp_1d_fp32"], found {tolerance!r}')
    if ledger._rows.get(tolerance.name) is not tolerance or str(tolerance) != _ORIGINALS[tolerance.name]:
        raise TypeError(f"{tolerance!r} is not the ledger's {tolerance.name}; a case cannot change it")
    return tolerance
