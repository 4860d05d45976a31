"""Measure what the net itself costs: `tools/bazel run //tools/bench` or `python -m tools.bench`.

Start of 2, 4 and 8 ranks and the cost of a further case, beside `torchrun -m pytest` and PyTorch's
MultiProcContinuousTest; with --soak, launch after launch in search of one that hangs. Wants a quiet machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from absl import app, flags

from tools.bench import compare, contenders, figures, plot, results, soak, starts
from tools.bench.launches import LaunchError

_RANKS = flags.DEFINE_list("ranks", ["2", "4", "8"], "rank counts to measure")
flags.register_validator(
    "ranks", lambda counts: all(count.isdigit() and int(count) > 1 for count in counts), "numbers over 1"
)
_CONTENDERS = flags.DEFINE_multi_enum("contender", list(contenders.ALL), list(contenders.ALL), "who is measured")
_REPETITIONS = flags.DEFINE_integer("repetitions", figures.LEAST_REPETITIONS, "rounds", lower_bound=1)
_FURTHER_CASES = flags.DEFINE_integer("further_cases", 100, "cases after the first in a running group", lower_bound=1)
_LIMIT = flags.DEFINE_float("limit", 300.0, "seconds one launch may take", lower_bound=1.0)
_OUT = flags.DEFINE_string(
    "out",
    "",
    "folder for the results, relative to where the command was typed (default: a new temporary one)",
)
_CHECK = flags.DEFINE_bool("check", False, "exit with code 1 when a promise about the net's cost is not kept")
_SOAK = flags.DEFINE_integer("soak", 0, "instead of measuring, launch this often and look for hangs", lower_bound=0)
_SOAK_RANKS = flags.DEFINE_integer("soak_ranks", 4, "ranks of each launch of the soak", lower_bound=2)
_SOAK_GROUPS = flags.DEFINE_integer(
    "soak_groups", 24, "groups started by each full launch of the soak; they count as launches", lower_bound=0
)
_SOAK_LIMIT = flags.DEFINE_float("soak_limit", 30.0, "seconds after which a launch of the soak hangs", lower_bound=1.0)


def main(argv: list[str]) -> int:
    """Run what the flags ask for; returns 0, or 1 on a promise not kept, a hang or a failed launch."""
    if argv[1:]:
        raise app.UsageError(f"unexpected arguments {argv[1:]}: everything is a flag")
    out = _folder()
    where = results.machine()
    print(f"{where}; results go to {out}", flush=True)
    try:
        return _soak(out) if _SOAK.value else _compare(out, where)
    except LaunchError as error:
        print(f"bench: a launch failed, so there are no figures\n{error}", file=sys.stderr)
        return 1


def _compare(out: Path, where: str) -> int:
    chosen = [contenders.ALL[name] for name in dict.fromkeys(_CONTENDERS.value)]
    ranks = [int(count) for count in _RANKS.value]
    samples = []
    for sample in compare.compare(chosen, ranks, _REPETITIONS.value, _FURTHER_CASES.value, _LIMIT.value):
        samples.append(sample)
        print(compare.told(sample), flush=True)
        (out / "runs.csv").write_text(results.rows_csv(samples))
    summary = figures.summarise(samples)
    (out / "summary.csv").write_text(results.summary_csv(summary))
    caption = f"medians of {_REPETITIONS.value}, whiskers from lowest to highest; {where}"
    (out / "bench.svg").write_text(plot.svg(summary, caption))
    print(f"\n{caption}\n{results.table(summary)}\n")
    bars = figures.bars(summary, contenders.NET, contenders.TORCHRUN)
    for bar in bars:
        print(f"{'kept' if bar.kept else 'NOT KEPT'}: {bar.text}")
    return int(_CHECK.value and not all(bar.kept for bar in bars))


def _soak(out: Path) -> int:
    found: list[starts.Start] = []
    begun = time.monotonic()
    for batch in soak.soak(_SOAK.value, _SOAK_RANKS.value, _SOAK_GROUPS.value, _SOAK_LIMIT.value):
        found += batch.starts
        if batch.story:
            story = out / f"trouble-at-{len(found)}.txt"
            story.write_text(batch.story + "\n")
            print(f"trouble, see {story}", flush=True)
        left = (time.monotonic() - begun) / len(found) * (_SOAK.value - len(found))
        print(f"of {_SOAK.value}: {starts.counts(found)}; about {left / 60:.1f} min left", flush=True)
        (out / "soak.csv").write_text(results.rows_csv(found))
    print("", *filter(None, (starts.distribution(found, kind) for kind in ("full", "group"))), "", sep="\n")
    minutes = (time.monotonic() - begun) / 60
    print(f"{_SOAK_RANKS.value} ranks each, in {minutes:.1f} min: {starts.counts(found)}")
    return int(any(start.verdict != "ok" for start in found))


def _folder() -> Path:
    """Where results go: never into the tree unless asked for by a relative path."""
    if _OUT.value:
        folder = Path(os.environ.get("BUILD_WORKING_DIRECTORY", ".")).absolute() / _OUT.value
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    return Path(tempfile.mkdtemp(prefix=time.strftime("hyper_parallel_tests-bench-%Y%m%d-%H%M%S-")))


if __name__ == "__main__":
    app.run(main)
