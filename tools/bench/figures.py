"""What is measured of one launch, medians over several, and the promises they are held to."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tools.bench.launches import Case

START_RANKS = 8
START_SHARE = 0.25
FURTHER_CASE_MS = 20.0
LEAST_REPETITIONS = 5


@dataclass(frozen=True)
class Sample:
    """What one launch cost.

    Attributes:
        contender: its name.
        ranks: how many ranks it started.
        repetition: the round of the benchmark it belongs to, from 0.
        cases: how many cases it ran.
        first_case_s: seconds from the start of its process to the end of the first case on the last rank.
        whole_run_s: seconds from the start to the end of that process.
        cpu_s: processor seconds of all its processes; where tests run side by side, a suite waits for these.
        further_case_ms: milliseconds that a further case costs beyond its own time, None where it ran one.
        own_case_ms: milliseconds that the case itself takes in a bare loop on the same ranks, None where that was not
            measured.
    """

    contender: str
    ranks: int
    repetition: int
    cases: int
    first_case_s: float
    whole_run_s: float
    cpu_s: float
    further_case_ms: float | None
    own_case_ms: float | None = None


# Attribute of Sample -> how tables and pictures call it.
QUANTITIES = {
    "first_case_s": "start to end of first case, s",
    "whole_run_s": "whole run of one case, s",
    "cpu_s": "whole run of one case, processor s",
    "further_case_ms": "cost of a further case, ms",
}


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of `runs` figures."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Key:
    """What a spread is of."""

    quantity: str
    ranks: int
    contender: str


@dataclass(frozen=True)
class Bar:
    """One promise, what was found, and whether it is kept."""

    text: str
    kept: bool


def start_costs(started: float, ended: float, cases: Mapping[int, Case]) -> tuple[float, float]:
    """Seconds to the end of the first case, and to the end of the process."""
    return cases[0].ended - started, ended - started


def further_case_ms(cases: Mapping[int, Case], own_ms: float) -> float:
    """Milliseconds from the end of a case to the end of the next, the mean over cases, less `own_ms`.

    The case's own time is that of a bare loop: where ranks share processors, what a case takes inside of a launcher
    depends on when the launcher tells each rank.
    """
    ends = [cases[number].ended for number in sorted(cases)]
    return 1e3 * (ends[-1] - ends[0]) / (len(ends) - 1) - own_ms


def summarise(samples: Iterable[Sample]) -> dict[Key, Spread]:
    """Spreads in the order of first appearance. Launches of many cases count for the further case only."""
    found: dict[Key, list[float]] = {}
    for sample in samples:
        for quantity in QUANTITIES:
            value = getattr(sample, quantity)
            if value is not None and (sample.cases == 1 or quantity == "further_case_ms"):
                found.setdefault(Key(quantity, sample.ranks, sample.contender), []).append(value)
    return {key: Spread.of(values) for key, values in found.items()}


def bars(summary: Mapping[Key, Spread], net: str, torchrun: str) -> list[Bar]:
    """The promises about the net's own cost, held against a summary; what was not measured is not kept."""
    fewest = min((spread.runs for spread in summary.values()), default=0)
    return [
        _start_bar(summary, net, torchrun),
        *_further_case_bars(summary, net),
        Bar(
            f"figures are medians of {fewest} runs or more (at least {LEAST_REPETITIONS})",
            fewest >= LEAST_REPETITIONS,
        ),
    ]


def _start_bar(summary: Mapping[Key, Spread], net: str, torchrun: str) -> Bar:
    promise = f"{START_RANKS} ranks end their first case in at most {START_SHARE:.0%} of torchrun's time"
    ours = summary.get(Key("first_case_s", START_RANKS, net))
    theirs = summary.get(Key("first_case_s", START_RANKS, torchrun))
    if ours is None or theirs is None:
        return Bar(f"{promise}: not measured, both are needed on {START_RANKS} ranks", False)
    share = ours.median / theirs.median
    return Bar(f"{promise}: {ours.median:.2f} s of {theirs.median:.2f} s, {share:.0%}", share <= START_SHARE)


def _further_case_bars(summary: Mapping[Key, Spread], net: str) -> list[Bar]:
    promise = f"a further case costs at most {FURTHER_CASE_MS:.0f} ms over its own time"
    ours = {
        key.ranks: spread
        for key, spread in summary.items()
        if key.quantity == "further_case_ms" and key.contender == net
    }
    if not ours:
        return [Bar(f"{promise}: not measured", False)]
    return [
        Bar(f"{promise} on {ranks} ranks: {spread.median:.1f} ms", spread.median <= FURTHER_CASE_MS)
        for ranks, spread in ours.items()
    ]
