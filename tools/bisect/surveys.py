"""What a contract's cases do on one checkout of an engine, asked of Bazel.

Each target runs as a survey: it ends well whatever its cases did, so that Bazel keeps a red result too, and a revision
whose libraries, as far as the target sees them, are those of another one costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hyper_parallel_tests.contract_check import build_files
from hyper_parallel_tests.contract_check.tree import Tree
from tools.bisect.search import Survey
from tools.report.results import DOES_NOT_FIT, Case, read_events

__all__ = ["Plan", "UnknownContract", "plan", "run"]

# Bazel takes its time to end its tests.
_PATIENCE_S = 60.0
# What this process was given for itself: its interpreter's, its runfiles', and what `bazel run` tells.
_OURS = ("PYTHON", "RUNFILES_", "JAVA_RUNFILES", "BUILD_", "BAZEL_REAL")


class UnknownContract(ValueError):
    """There is no such contract, or nothing that runs it; the text says what there is."""


@dataclass(frozen=True)
class Plan:
    """What is to be run for one contract.

    Attributes:
        contract: its id.
        targets: labels.
        functions: names of the cases' functions.
        case: a text that the node ids of the cases must contain.
    """

    contract: str
    targets: tuple[str, ...]
    functions: tuple[str, ...]
    case: str = ""

    def concerns(self, case: Case) -> bool:
        """Whether a case of a report is one of the contract's."""
        return self.contract in case.contracts and self.case in case.nodeid


def plan(tree: Tree, contract: str, cards: int = 0, targets: Sequence[str] = (), case: str = "") -> Plan:
    """What to run for a contract.

    Args:
        tree: the product's package.
        contract: its id.
        cards: keep only targets with this many; 0 for any.
        targets: keep only these; empty for all.
        case: keep only cases whose `file::function` contains this; a `[` begins what only a run can tell.

    Raises:
        UnknownContract: there is no such contract, or no case or target is left.
    """
    if contract not in tree.contracts:
        near = [one for one in tree.contracts if one.partition("-")[0] == contract.partition("-")[0]]
        raise UnknownContract(f"no contract {contract!r}: expected one of {', '.join(near or tree.contracts)}")
    cases = [one for one in tree.domain_cases if contract in one.contracts]
    wanted = [one for one in cases if case.partition("[")[0] in f"{one.source.path}::{one.name}"]
    files = {one.source.path for one in wanted}
    found = {
        _test_of(target.label(tree.root)): _cards(target.name)
        for path in build_files.all_below(tree.root)
        for target in build_files.layer_tests(path)
        if files.intersection(target.files)
    }
    kept = [
        label
        for label, count in found.items()
        if cards in {0, count} and (not targets or label in map(_test_of, targets))
    ]
    if not kept:
        there = ", ".join(found) or "no target"
        named = ", ".join(f"{one.source.path.name}::{one.name}" for one in cases) or "no case"
        raise UnknownContract(f"{contract}: nothing to run is left of its cases ({named}) in {there}")
    return Plan(contract, tuple(kept), tuple(dict.fromkeys(one.node.name for one in wanted)), case)


def run(plan: Plan, engine: str, checkout: Path, workspace: Path, log: Path, flags: Sequence[str] = ()) -> Survey:
    """Run a plan's cases on an engine's checkout.

    Args:
        plan: what to run.
        engine: its name; `<ENGINE>_PATH` names the checkout to Bazel.
        checkout: the engine's sources.
        workspace: the net's own checkout, whose tools/bazel is asked.
        log: folder that takes what Bazel prints.
        flags: further flags for Bazel.
    """
    events = log / "events.json"
    events.unlink(missing_ok=True)
    command = [
        str(workspace / "tools" / "bazel"),
        "test",
        f"--//tools/rules:engine={engine}",
        f"--repo_env={engine.upper()}_PATH={checkout}",
        f"--build_event_json_file={events}",
        "--keep_going",
        "--test_arg=--survey",
        "--test_arg=-k",
        f"--test_arg={' or '.join(plan.functions)}",
        *flags,
        *plan.targets,
    ]
    begun = time.monotonic()
    said = _call(command, workspace, log / "bazel.log")
    seconds = time.monotonic() - begun
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(events.open(encoding="utf-8")) if events.exists() else ()
        targets = read_events(lines, workspace).values()
    cases = {case.nodeid: case for target in targets for case in target.cases if plan.concerns(case)}
    unfit = [f"{target.label} is not for this engine or device" for target in targets if target.status == DOES_NOT_FIT]
    troubles = [*(one for target in targets for one in target.trouble), *unfit, said]
    cached = bool(cases) and all(target.cached for target in targets if target.cases)
    return Survey(cases, "" if cases else next(filter(None, troubles), ""), cached, seconds)


def _test_of(label: str) -> str:
    """The test itself: `:l0` is short for `:l0_1card`, and to Bazel the suite of the package's tests of that layer."""
    return f"{label}_1card" if re.search(r":l[0-4]$", label) else label


def _cards(name: str) -> int:
    found = re.search(r"_(\d+)card", name)
    return int(found[1]) if found else 1


def _call(command: Sequence[str], workspace: Path, output: Path) -> str:
    """Run Bazel; returns the first error that it printed, if any. An interruption waits for Bazel's end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    with output.open("wb") as sink:
        process = subprocess.Popen(
            command, cwd=workspace, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT
        )
        try:
            process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_S)
            process.kill()
            process.wait()
            raise
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", output.read_text(errors="replace"))
    return next((line.strip() for line in text.splitlines() if line.lstrip().startswith("ERROR:")), "")
