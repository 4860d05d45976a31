"""Tell what a `bazel test` run did, case by case, from its build events: `summary.py EVENTS_JSON`.

Prints a line a target, the headline of each failed case, and ends with `N passed, N failed` (and `, N skipped`).
The exit code is 0 only when something passed and nothing failed.

It runs before and without the project's environment: standard library only.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlparse

_APART = {
    "expected-broken": "expected broken (see the engine's expectations.toml)",
    "not-offered": "not offered (the engine says that it lacks a member of the port)",
}
"""Verdicts that are neither passes nor failures."""

_DOES_NOT_FIT = "SKIPPED"
"""Bazel's word for a target that is not for this engine or device, or whose engine is not at hand."""


@dataclass
class Target:
    """One test target of the run: Bazel's verdict, and the outcomes of its cases over all shards and runs."""

    label: str
    status: str = ""
    cached: bool = True
    cases: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def read(events: Iterable[str], workspace: Path) -> dict[str, Target]:
    """Targets by label, from the lines of a --build_event_json_file."""
    targets: dict[str, Target] = {}
    for line in events:
        event = json.loads(line)
        if "testResult" in event:
            _add_result(targets, event, workspace)
        elif "testSummary" in event:
            label = event["id"]["testSummary"]["label"]
            targets.setdefault(label, Target(label)).status = event["testSummary"]["overallStatus"]
        elif "aborted" in event and "targetCompleted" in event["id"]:
            label = event["id"]["targetCompleted"]["label"]
            if event["aborted"].get("reason") == "SKIPPED":
                targets.setdefault(label, Target(label, _DOES_NOT_FIT))
            else:
                failed = targets.setdefault(label, Target(label, "NOT BUILT"))
                failed.failures.append(event["aborted"].get("description", "was not built"))
    return targets


def _add_result(targets: dict[str, Target], event: dict, workspace: Path) -> None:
    label = event["id"]["testResult"]["label"]
    result = event["testResult"]
    target = targets.setdefault(label, Target(label))
    target.status = result["status"]
    target.cached &= bool(result.get("cachedLocally") or result.get("executionInfo", {}).get("cachedRemotely"))
    xml = _xml_of(event, workspace)
    if xml is None or not _add_cases(target, xml):
        target.cases["failed" if result["status"] != "PASSED" else "passed"] += 1
    elif result["status"] != "PASSED" and not target.failures:
        target.cases["failed"] += 1
        target.failures.append(f"Bazel says {result['status']} although no case failed")


def _xml_of(event: dict, workspace: Path) -> Path | None:
    """The test.xml of one result: where the event says, or, after a remote run, where Bazel puts its copy."""
    for output in event["testResult"].get("testActionOutput", []):
        if output["name"] == "test.xml" and output.get("uri", "").startswith("file:"):
            return Path(unquote(urlparse(output["uri"]).path))
    label = event["id"]["testResult"]["label"]
    path = workspace / "bazel-testlogs" / label.removeprefix("//").replace(":", "/") / "test.xml"
    return path if path.exists() else None


def _add_cases(target: Target, xml: Path) -> bool:
    """Count the cases of one test.xml; False where it holds none."""
    try:
        root = ElementTree.parse(xml).getroot()
    except (OSError, ElementTree.ParseError):
        return False
    found = False
    for case in root.iter("testcase"):
        found = True
        failure = case.find("failure") if case.find("failure") is not None else case.find("error")
        verdict = next((one.get("value") for one in case.iter("property") if one.get("name") == "verdict"), "")
        if failure is not None:
            target.cases["failed"] += 1
            message = (failure.get("message") or "").strip().partition("\n")[0]
            target.failures.append(f"{case.get('name')}: {message}")
        elif verdict in _APART:
            target.cases[verdict] += 1
        elif case.find("skipped") is not None:
            target.cases["skipped"] += 1
        else:
            target.cases["passed"] += 1
    return found


def show(targets: dict[str, Target]) -> int:
    """Print the summary; returns the exit code."""
    total: Counter[str] = Counter()
    skipped_targets = [label for label in sorted(targets) if targets[label].status == _DOES_NOT_FIT]
    for label in sorted(targets.keys() - set(skipped_targets)):
        target = targets[label]
        if target.failures and not target.cases["failed"]:
            target.cases["failed"] = len(target.failures)
        total.update(target.cases)
        counts = ", ".join(f"{number} {what}" for what, number in sorted(target.cases.items()))
        print(f"{label:<70} {target.status}{' (cached)' if target.cached else ''}: {counts}")
        for failure in target.failures:
            print(f"    FAILED {failure}")
    if skipped_targets:
        print(f"{len(skipped_targets)} targets are not for this engine or device, or their engine is not at hand:")
        print("\n".join(f"    SKIPPED {label}" for label in skipped_targets))
        print(f"    (tools/bazel test {skipped_targets[0]} says why)")
    for verdict, what in _APART.items():
        if total[verdict]:
            print(f"{what}: {total[verdict]}")
    skipped = f", {total['skipped']} skipped" if total["skipped"] else ""
    print(f"{total['passed']} passed, {total['failed']} failed{skipped}")
    return 0 if total["passed"] and not total["failed"] else 1


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
        return show(read(events, workspace))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
