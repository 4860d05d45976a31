"""The contenders side by side: each in turn, round after round, so that a slow minute hits all alike."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.bench import launches
from tools.bench.cases import settings
from tools.bench.contenders import ROOT, Contender
from tools.bench.figures import Sample, further_case_ms, start_costs
from tools.bench.launches import LaunchError
from tools.bench.results import short


def compare(
    contenders: Sequence[Contender],
    ranks: Sequence[int],
    repetitions: int,
    further_cases: int,
    limit_s: float,
) -> Iterator[Sample]:
    """Measure; yields each sample as it is taken.

    Args:
        contenders: who is compared.
        ranks: rank counts, each measured in every round.
        repetitions: rounds.
        further_cases: cases after the first, for contenders that keep their ranks.
        limit_s: seconds one launch may take.

    Raises:
        LaunchError: a launch failed; figures of a race that somebody left are worth nothing.
    """
    for contender in contenders:
        # Fills the page cache and writes the bytecode of this repository's modules; not counted.
        _measure(contender, min(ranks), -1, 1, limit_s)
    for repetition in range(repetitions):
        for count in ranks:
            for contender in contenders:
                yield _measure(contender, count, repetition, 1, limit_s)
            for contender in contenders:
                if contender.keeps_ranks:
                    yield _measure(contender, count, repetition, 1 + further_cases, limit_s)


def told(sample: Sample) -> str:
    """One line of progress."""
    further = "" if sample.further_case_ms is None else f", further case {short(sample.further_case_ms)} ms"
    further += "" if sample.own_case_ms is None else f" over its own {short(sample.own_case_ms)} ms"
    return (
        f"round {sample.repetition + 1}: {sample.contender}, {sample.ranks} ranks, {sample.cases} cases: "
        f"first case {short(sample.first_case_s)} s, whole run {short(sample.whole_run_s)} s, "
        f"processor {short(sample.cpu_s)} s{further}"
    )


def _measure(contender: Contender, ranks: int, repetition: int, cases: int, limit_s: float) -> Sample:
    with tempfile.TemporaryDirectory(prefix="hyper_parallel_tests-bench-") as folder:
        record = Path(folder) / "record"
        environment = launches.environment(ROOT, record, ranks, cases)
        launch = launches.run(contender.command(ranks), ROOT, environment, Path(folder) / "output", limit_s)
        done = launches.read_record(record, ranks)
        loop = done.pop(settings.LOOP, None)
        if len(done) != cases or (loop is None and contender.keeps_ranks and cases > 1):
            raise LaunchError(launch.story(f"ran {len(done)} of {cases} cases on all {ranks} ranks"))
    first, whole = start_costs(launch.started, launch.ended, done)
    own = 1e3 * loop.own / cases if loop is not None else None
    if own is not None:
        further = further_case_ms(done, own)
    else:
        further = None if contender.keeps_ranks else 1e3 * (whole - done[0].own)
    return Sample(contender.name, ranks, repetition, cases, first, whole, launch.cpu_s, further, own)
