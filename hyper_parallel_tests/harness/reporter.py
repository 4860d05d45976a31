"""Verdicts as pytest reports them: terminal, JUnit XML and durations are pytest's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from hyper_parallel_tests.harness import channel
from hyper_parallel_tests.harness.group import CaseRecord
from hyper_parallel_tests.harness.options import Options
from hyper_parallel_tests.harness.verdict import Verdict

# Verdicts that are neither passes nor failures: each is counted and named by itself.
_APART = {"expected-broken": ("expected broken", "b"), "not-offered": ("not offered", "n")}


class Reporter:
    """pytest plugin that gives verdicts to pytest's reports: terminal, JUnit XML, durations.

    Attributes:
        statements: contract id -> its sentence.
        engine_version: of the engine under test, empty where the target sees none.
        troubled: whether something failed that is no case's verdict, so that the report is not whole.
    """

    def __init__(self, options: Options, statements: dict[str, str]) -> None:
        self.statements = statements
        self.engine_version = ""
        self.troubled = False
        self._options = options
        self.session: pytest.Session | None = None
        self._apart: list[str] = []

    def pytest_report_header(self) -> str:
        options = self._options
        said = [f"{options.cards} x {options.device}", f"engine {options.engine}", options.layer]
        said += [f"fault {options.fault}"] if options.fault else []
        said += [f"proving faults of {', '.join(options.faults)}"] if options.faults else []
        return "ranks: " + ", ".join(filter(None, said))

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        if report.when == "call" and (apart := _APART.get(getattr(report, "verdict", ""))):
            return *apart, apart[0].upper()
        return None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self._apart:
            terminalreporter.line(line)

    def note(self, text: str) -> None:
        """Say something of the whole run at its end."""
        self._apart.append(text)

    def list_cases(self, nodeids: list[str]) -> None:
        """Name cases instead of running them, for --collect-only."""
        terminal = self.session.config.pluginmanager.get_plugin("terminalreporter")
        for nodeid in nodeids:
            terminal.line(nodeid)

    def case(self, info: channel.CaseInfo, verdict: Verdict, record: CaseRecord) -> None:
        """Report one finished case."""
        if apart := _APART.get(verdict.kind):
            self._apart.append(f"{apart[0].upper()} {info.nodeid}: {verdict.headline}")
        self.troubled |= verdict.kind == "stopped"
        properties = [*self._properties(info, verdict)]
        self.outcome(info.nodeid, info.location, verdict, record.started, record.seconds, properties)

    def _properties(self, info: channel.CaseInfo, verdict: Verdict) -> Iterator[tuple[str, object]]:
        """What the XML tells of a case beyond JUnit's own, for tools/report."""
        yield "verdict", verdict.kind
        yield "contracts", " ".join(info.contracts)
        yield "cards", self._options.cards
        if self._options.jobs:
            yield "jobs", True
        if self.engine_version:
            yield "engine", self._options.engine
            yield "engine_version", self.engine_version
        if verdict.first is not None:
            yield "first_rank", verdict.first
        if verdict.kind in _APART:
            yield "headline", verdict.headline
        if verdict.reproduction:
            yield "reproduction", verdict.reproduction
        if self._options.fault:
            yield "fault", self._options.fault

    def outcome(
        self,
        nodeid: str,
        location: tuple[str, int | None, str],
        verdict: Verdict,
        started: float,
        seconds: float,
        properties: list[tuple[str, object]],
    ) -> None:
        """Report one item of any kind that ended with `verdict`."""
        hook = self.session.config.hook
        hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
        outcome = "skipped" if verdict.kind in _APART else verdict.kind
        outcome = outcome if outcome in {"passed", "skipped"} else "failed"
        longrepr: Any = None
        if outcome == "skipped":
            longrepr = (location[0], location[1] or 0, verdict.text)
        elif outcome == "failed":
            longrepr = _Longrepr(verdict.headline, verdict.text)
        for when in ("setup", "call", "teardown"):
            main = when == "call"
            report = pytest.TestReport(
                nodeid,
                location,
                {nodeid: 1},
                outcome if main else "passed",
                longrepr if main else None,
                when,
                user_properties=properties,
                duration=seconds if main else 0.0,
                start=started,
                stop=started + seconds,
            )
            report.verdict = verdict.kind
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)

    def error(self, what: str, text: str) -> None:
        """Report a failure that belongs to no single case as an item of its own, so that no reader can miss it."""
        self.troubled = True
        verdict = Verdict("error", (), None, text.partition("\n")[0], text)
        self.outcome(f"ranks::{what}", ("ranks", None, what), verdict, time.time(), 0.0, [("verdict", "error")])
        self.session.testscollected += 1


class _Longrepr:
    """A failure's text as pytest's reports want it."""

    def __init__(self, headline: str, text: str) -> None:
        self.text = text
        self.reprcrash = _Crash(headline)

    def __str__(self) -> str:
        return self.text

    def toterminal(self, terminal: Any) -> None:
        terminal.line(self.text)


class _Crash:
    """The one line that pytest's summary and the XML's message show."""

    def __init__(self, message: str) -> None:
        self.message = message

    def __str__(self) -> str:
        return self.message
