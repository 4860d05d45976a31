"""Launch after launch of the net, looking for one that hangs.

Two kinds count, and are told apart. A full launch is a process of its own: launcher, fork server, ranks. A
group is what a running launcher starts where ranks may not run another case; every case of the soak asks for
that, so that many groups follow one full launch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hyper_parallel_tests.harness import processes
from tools.bench import launches
from tools.bench.contenders import ROOT, Net
from tools.bench.launches import Launch
from tools.bench.starts import Start, judge

_LOOK_S = 0.25
# The launcher's own limits come first, as its report has the ranks' stacks; it gets this long to write it.
_REPORT_S = 30.0


@dataclass(frozen=True)
class Batch:
    """A full launch and its groups; `story` is what it printed where something went wrong, else empty."""

    starts: tuple[Start, ...]
    story: str


def soak(total: int, ranks: int, groups: int, limit_s: float) -> Iterator[Batch]:
    """Launch `total` times, one after the other; yields after each full launch and its groups.

    Args:
        total: launches of both kinds.
        ranks: ranks of each launch.
        groups: groups that each full launch goes on to start.
        limit_s: seconds that one launch may take before it is a hang.
    """
    counted = 0
    while counted < total:
        batch = _batch(ranks, min(1 + groups, total - counted), limit_s)
        counted += len(batch.starts)
        yield batch


def _batch(ranks: int, cases: int, limit_s: float) -> Batch:
    command = Net(f"--startup={limit_s}", f"--watchdog={limit_s}").command(ranks)
    with tempfile.TemporaryDirectory(prefix="hyper_parallel_tests-soak-") as folder:
        record, output = Path(folder) / "record", Path(folder) / "output"
        environment = launches.environment(ROOT, record, ranks, cases, fresh_ranks=True)
        with Launch(command, ROOT, environment, output) as launch:
            code = _follow(launch, record, limit_s + _REPORT_S)
            trouble = _trouble(code, launch.left_behind() if code is not None else [])
        done = launches.read_record(record, ranks)
        starts = judge(launch.started, launch.ended, done, cases, limit_s, bool(trouble))
        return Batch(starts, launch.story(trouble) if trouble else "")


def _follow(launch: Launch, record: Path, patience_s: float) -> int | None:
    """Wait while the record grows; the exit code, None where the launcher itself stopped getting on."""
    size, grown = 0, time.monotonic()
    while (code := launch.wait(_LOOK_S)) is None:
        now = record.stat().st_size if record.exists() else 0
        if now > size:
            size, grown = now, time.monotonic()
        if time.monotonic() - grown > patience_s:
            launch.abort()
            return None
    return code


def _trouble(code: int | None, left: Sequence[str]) -> str:
    if code is None:
        return "the launcher hung"
    if code != 0:
        return processes.exit_text(code)
    return f"left behind {', '.join(left)}" if left else ""
