"""What a soak found: each launch with its verdict, and the distribution of their times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tools.bench.figures import Spread
from tools.bench.launches import Case
from tools.bench.results import short

# A launch is slow when it takes this many times the median of its kind.
SLOW = 3.0
_POINTS = (("lowest", 0.0), ("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("highest", 1.0))
_BINS, _WIDTH = 10, 50


@dataclass(frozen=True)
class Start:
    """One launch.

    Attributes:
        kind: full, a process tree of its own; group, fresh ranks of a running launcher.
        seconds: to the end of its case on the last rank, from the start of its process (full) or the end of
            the case before (group: ending the ranks before it is part of it); None where one is not known.
        verdict: ok, hang or failed.
    """

    kind: str
    seconds: float | None
    verdict: str


def judge(
    started: float, ended: float, done: Mapping[int, Case], cases: int, limit_s: float, failed: bool
) -> tuple[Start, ...]:
    """The launches of one launcher that was given `cases` cases, each with ranks of its own.

    A case that is not among `done` is a launch that hung, if `limit_s` passed until the next one was done, or
    else failed. A launcher goes on after a failed case and gives up after ranks that did not come up: what it
    did not try is no launch. One that `failed` although all cases were done did so at its end.

    Args:
        started, ended: when the launcher's process did, on the clock of `done`.
        done: the cases that ended on all ranks, by number.
        cases: how many there were to be.
        limit_s: seconds that a launch may take.
        failed: whether the launcher says that something went wrong.
    """
    starts: list[Start] = []
    before = started
    for number in range(cases):
        kind = "group" if number else "full"
        if number in done:
            known = number == 0 or number - 1 in done
            starts.append(Start(kind, done[number].ended - before if known else None, "ok"))
            before = done[number].ended
            continue
        after = min((case.ended for later, case in done.items() if later > number), default=None)
        starts.append(Start(kind, None, _trouble(before, after or ended, limit_s)))
        if after is None:
            break
    if failed and all(start.verdict == "ok" for start in starts):
        starts[-1] = replace(starts[-1], verdict=_trouble(before, ended, limit_s))
    return tuple(starts)


def _trouble(before: float, after: float, limit_s: float) -> str:
    return "hang" if after - before >= limit_s else "failed"


def counts(starts: Sequence[Start]) -> str:
    """`24 launches (1 full, 23 groups): 0 hangs, 0 failures, 0 slow`."""
    full = sum(start.kind == "full" for start in starts)
    hangs = sum(start.verdict == "hang" for start in starts)
    failures = sum(start.verdict == "failed" for start in starts)
    slow = sum(len(_slow(_times(starts, kind))) for kind in ("full", "group"))
    kinds = f"{len(starts)} launches ({full} full, {len(starts) - full} groups)"
    return f"{kinds}: {hangs} hangs, {failures} failures, {slow} slow"


def distribution(starts: Sequence[Start], kind: str) -> str:
    """Percentiles, slow ones and a histogram of one kind, in seconds; empty where there was none."""
    times = _times(starts, kind)
    if not times:
        return ""
    points = [f"{name} {short(times[max(0, math.ceil(len(times) * share) - 1)])}" for name, share in _POINTS]
    slow = ", ".join(map(short, _slow(times))) or "none"
    head = f"{kind} launches, seconds: {', '.join(points)}; over {SLOW:.0f} times the median: {slow}"
    return "\n".join([head, *_histogram(times)])


def _times(starts: Sequence[Start], kind: str) -> list[float]:
    return sorted(start.seconds for start in starts if start.kind == kind and start.seconds is not None)


def _slow(times: Sequence[float]) -> list[float]:
    limit = SLOW * Spread.of(times).median if times else 0.0
    return [one for one in times if one > limit]


def _histogram(times: Sequence[float]) -> list[str]:
    low = times[0]
    step = (times[-1] - low) / _BINS or 1.0
    tally = [0] * _BINS
    for one in times:
        tally[min(_BINS - 1, int((one - low) / step))] += 1
    edges = [short(low + place * step) for place in range(_BINS + 1)]
    bars = ["#" * round(_WIDTH * found / len(times)) for found in tally]
    return [
        f"  {edges[place]:>6} .. {edges[place + 1]:>6}  {tally[place]:5d} {bars[place]}".rstrip()
        for place in range(_BINS)
    ]
