"""Tell what a `bazel test` run did, case by case, from its build events: `summary.py EVENTS_JSON`.

Prints a line a target; then, each by itself, the contracts that are newly broken, those that are newly fixed, and what
is red for other reasons. It ends with `N passed, N failed` (and `, N skipped`). The exit code is 0 only when something
passed and nothing failed.

It runs before and without the project's environment: standard library only.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.report.results import DOES_NOT_FIT, Case, Target, read_events  # noqa: E402

_APART = {
    "expected-broken": "expected broken (see the engine's expectations)",
    "not-offered": "not offered (the engine says that it lacks a member of the port)",
}
"""Verdicts that are neither passes nor failures."""


def show(targets: dict[str, Target]) -> int:
    """Print the summary; returns the exit code."""
    total: Counter[str] = Counter()
    run = [targets[label] for label in sorted(targets) if targets[label].status != DOES_NOT_FIT]
    for target in run:
        counts = _counts(target)
        total.update(counts)
        shown = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
        print(f"{target.label:<70} {target.status}{' (cached)' if target.cached else ''}: {shown}")
    _show_skipped([label for label in sorted(targets) if targets[label].status == DOES_NOT_FIT])
    for verdict, what in _APART.items():
        if total[verdict]:
            print(f"{what}: {total[verdict]}")
    cases = [case for target in run for case in target.cases]
    _show_contracts("NEWLY BROKEN", "mend it, or enter it in", [case for case in cases if case.newly_broken])
    _show_contracts("NEWLY FIXED", "remove its entry from", [case for case in cases if case.newly_fixed])
    _show_others(run)
    skipped = f", {total['skipped']} skipped" if total["skipped"] else ""
    print(f"{total['passed']} passed, {total['failed']} failed{skipped}")
    return 0 if total["passed"] and not total["failed"] else 1


def _counts(target: Target) -> Counter[str]:
    counts = Counter(_kind(case) for case in target.cases)
    counts.update(passed=target.unread, failed=len(target.trouble))
    return +counts


def _kind(case: Case) -> str:
    if case.red:
        return "failed"
    return case.verdict if case.verdict in {*_APART, "skipped"} else "passed"


def _show_skipped(labels: list[str]) -> None:
    if labels:
        print(f"{len(labels)} targets are not for this engine or device, or their engine is not at hand:")
        print("\n".join(f"    SKIPPED {label}" for label in labels))
        print(f"    (tools/bazel test {labels[0]} says why)")


def _show_contracts(what: str, advice: str, cases: Iterable[Case]) -> None:
    """Contracts by id, each with its cases; one that failed in several runs or shards is told once."""
    by_contract: dict[str, dict[str, Case]] = {}
    for case in cases:
        for contract in case.contracts:
            by_contract.setdefault(contract, {}).setdefault(case.nodeid, case)
    if not by_contract:
        return
    one = next(case for of in by_contract.values() for case in of.values())
    on = f" on {one.engine} {one.engine_version}" if one.engine else ""
    number = f"{len(by_contract)} contract{'s' * (len(by_contract) > 1)}"
    print(f"{what}{on}: {number} ({advice} the engine's expectations)")
    for contract, of in sorted(by_contract.items()):
        print(f"    {contract}")
        for nodeid, case in of.items():
            print(f"        {nodeid}: {case.headline}")


def _show_others(run: Iterable[Target]) -> None:
    """What is red and says nothing about a contract: the net's own tests, faults, leaks, builds, time limits."""
    lines = []
    for target in run:
        red = [case for case in target.cases if case.red and not (case.newly_broken or case.newly_fixed)]
        told = [*target.trouble, *(f"{case.nodeid}: {case.headline}" for case in red)]
        lines += [f"    {target.label} {one}" for one in told]
    if lines:
        print(f"RED FOR OTHER REASONS: {len(lines)}", *lines, sep="\n")


def main(argv: list[str]) -> int:
    """Read the build events that `argv` names; returns the exit code."""
    if len(argv) != 1:
        print(
            "usage: summary.py EVENTS_JSON (written by bazel test --build_event_json_file=...)",
            file=sys.stderr,
        )
        return 2
    path = Path(argv[0])
    if not path.exists():
        print(f"summary: {path} does not exist: the run ended before Bazel wrote its events", file=sys.stderr)
        print("0 passed, 1 failed")
        return 1
    workspace = Path(__file__).resolve().parents[2]
    with path.open() as events:
        return show(read_events(events, workspace))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
