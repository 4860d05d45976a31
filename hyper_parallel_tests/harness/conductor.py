"""The conductor collects nothing itself: it has the ranks run each case together, and judges them.

The ranks collect, since they need the case's module anyway; the conductor checks that all of them found the same.
That keeps torch out of this process for one card.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace

from hyper_parallel_tests.harness import channel, marks
from hyper_parallel_tests.harness.expectations import Expectations
from hyper_parallel_tests.harness.group import WATCHDOG, CaseRecord, Group, Interrupted, StartError
from hyper_parallel_tests.harness.options import Options
from hyper_parallel_tests.harness.rank import Orders
from hyper_parallel_tests.harness.reporter import Reporter
from hyper_parallel_tests.harness.verdict import Verdict, judge

# What is left of the target's time when the conductor stops by itself, to write stacks and the XML.
_MARGIN_S = 10.0


class Terminated(BaseException):
    """SIGTERM arrived: Bazel's timeout, or a person's kill."""


class Conductor:
    """Runs cases on groups of ranks; a fresh group follows one that may be spoiled.

    Attributes:
        options: what was asked for.
        verdicts: nodeid -> verdict, in the order of running.
    """

    def __init__(
        self,
        options: Options,
        orders: Orders,
        listener: channel.Listener,
        reporter: Reporter,
        expectations: Expectations,
    ) -> None:
        self.options = options
        self.verdicts: dict[str, Verdict] = {}
        self._orders = orders
        self._listener = listener
        self._reporter = reporter
        self._expectations = expectations
        self._group: Group | None = None
        self._begun = time.monotonic()
        self._collected: list[channel.Collected] = []

    # -- groups

    def group(self, fault: str = "") -> Group:
        """A group fit to run a case with `fault` applied; relaunched where the last one is spent.

        Raises:
            StartError: the ranks did not come up, or collected differently from each other or from the last group.
        """
        if self._group is not None and (self._group.spent or self._group.fault != fault):
            self.drop()
        if self._group is None:
            group = Group(replace(self._orders, fault=fault), self._listener, fault)
            try:
                self._check_collection(group)
            except StartError:
                group.kill()
                raise
            self._group = group
        return self._group

    def drop(self) -> None:
        """End the present group by force."""
        if self._group is not None:
            self._group.kill()
            self._group = None

    def close(self) -> str:
        """End the present group in order; returns what went wrong on the way, empty for nothing."""
        if self._group is None:
            return ""
        group, self._group = self._group, None
        if group.spent:
            group.kill()
            return ""
        return group.finish()

    def _check_collection(self, group: Group) -> None:
        errors = [error for found in group.collected for error in found.errors]
        if errors:
            raise StartError("\n".join(dict.fromkeys(errors)))
        if self._collected:
            _same_collection(self._collected[0].cases, group.collected, "the group before")
        _same_collection(group.collected[0].cases, group.collected, "rank 0")
        self._collected = group.collected
        self._reporter.engine_version = group.collected[0].engine_version

    # -- cases

    def run(
        self, cases: tuple[channel.CaseInfo, ...], plan: list[int]
    ) -> Iterator[tuple[channel.CaseInfo, Verdict, CaseRecord]]:
        """Run the cases numbered in `plan` one after the other on groups without a catalogued fault."""
        for position, index in enumerate(plan):
            following = plan[position + 1] if position + 1 < len(plan) else None
            yield cases[index], *self.run_one(cases[index], channel.Run(index, following), self.options.fault)

    def run_one(
        self, info: channel.CaseInfo, order: channel.Run, fault: str = "", limit: float = 0.0
    ) -> tuple[Verdict, CaseRecord]:
        """Run one case; `limit` in seconds overrides the case's own."""
        group = self.group(fault)
        kept = group.kept
        verdict, record = self._run_on(group, info, order, limit)
        if kept and verdict.kind not in {"passed", "skipped", "not-offered", "expected-broken"}:
            # What a known defect has left behind must not be taken for another one: fresh ranks decide.
            self.drop()
            verdict, record = self._run_on(self.group(fault), info, order, limit)
        self.verdicts[info.nodeid] = verdict
        return verdict, record

    def _run_on(
        self, group: Group, info: channel.CaseInfo, order: channel.Run, limit: float
    ) -> tuple[Verdict, CaseRecord]:
        limit = self._limit(info, limit)
        left = self._time_left()
        try:
            record = group.run(order, max(1.0, min(limit, left)))
        except Interrupted as interruption:
            self._reporter.case(info, judge(info, interruption.record, self._reporter.statements), interruption.record)
            self.drop()
            raise interruption.__cause__ from None
        if record.stopped == WATCHDOG and left < limit:
            record.stopped = "the target's time was up"
        verdict = judge(info, record, self._reporter.statements)
        if group.fault:
            return verdict, record
        verdict = self._expectations.hold(info, verdict, self._collected[0].engine_version)
        # Fresh ranks are dear where a matrix has hundreds of known defects. What one rank has sent and none received
        # would reach the next case, and no recorder tells of it.
        silent = self.options.ranks == 1 or info.collectives_only
        if verdict.kind == "expected-broken" and silent and record.together:
            group.keep()
        return verdict, record

    def _limit(self, info: channel.CaseInfo, limit: float) -> float:
        """Seconds that a case may take."""
        if self.options.pdb_rank is not None:
            return float("inf")
        return limit or info.watchdog or self.options.watchdog or marks.DEFAULT_WATCHDOG_S

    def _time_left(self) -> float:
        """Seconds until the conductor must write its reports, whatever still runs."""
        if self.options.target_timeout is None or self.options.pdb_rank is not None:
            return float("inf")
        return self.options.target_timeout - _MARGIN_S - (time.monotonic() - self._begun)

    def is_expected_broken(self, info: channel.CaseInfo) -> bool:
        """Whether this case fails on this engine without any fault."""
        return self._expectations.known(info, self._collected[0].engine_version) is not None

    def time_is_up(self) -> bool:
        """Whether the target's time is spent, so that no further case may start."""
        timeout = self.options.target_timeout
        return timeout is not None and time.monotonic() - self._begun > max(timeout - _MARGIN_S, timeout / 2)


def _same_collection(expected: tuple[channel.CaseInfo, ...], found: list[channel.Collected], reference: str) -> None:
    names = [case.nodeid for case in expected]
    for rank, one in enumerate(found):
        other = [case.nodeid for case in one.cases]
        if other == names:
            continue
        where = next(
            (i for i, (a, b) in enumerate(zip(names, other, strict=False)) if a != b),
            min(len(names), len(other)),
        )
        theirs = names[where] if where < len(names) else "nothing more"
        ours = other[where] if where < len(other) else "nothing more"
        raise StartError(
            f"rank {rank} collected {len(other)} cases and {reference} {len(names)}; they part at number {where}: "
            f"rank {rank} has {ours}, {reference} has {theirs}\n"
            "Each rank must collect the same cases in the same order: "
            "parametrize ids and order must not depend on the rank, a hash seed or the clock."
        )


def on_sigterm() -> None:
    """Turn SIGTERM into an exception at the place where the conductor waits."""

    def raise_terminated(number: int, frame: object) -> None:
        raise Terminated(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, raise_terminated)


def ignore_signals() -> None:
    """Cleaning up takes seconds at most, and must not be cut short by a person who presses Ctrl-C again."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
