"""The launcher's pytest session for an ordinary run: each case of this shard once, judged and reported."""

from __future__ import annotations

import sys

import pytest

from hyper_parallel_tests.harness.conductor import Conductor, Terminated, ignore_signals
from hyper_parallel_tests.harness.group import StartError, UsageError
from hyper_parallel_tests.harness.reporter import Reporter


class CasesSession:
    """pytest plugin: run the collected cases of this shard and report each."""

    def __init__(self, conductor: Conductor, reporter: Reporter) -> None:
        self._conductor = conductor
        self._reporter = reporter

    def pytest_collection(self, session: pytest.Session) -> bool:
        self._reporter.session = session
        return True

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        try:
            self._run(session)
        except StartError as error:
            self._reporter.error("start", str(error))
            if isinstance(error, UsageError):
                raise pytest.UsageError("the ranks' pytest sessions refused their arguments") from None
        except Terminated:
            print("launch: SIGTERM, no further case was run", file=sys.stderr)
            session.testsfailed += 1
        finally:
            # From here on the reports are written, the XML among them.
            ignore_signals()
            trouble = self._conductor.close()
        if trouble:
            self._reporter.error("end", trouble)
        return True

    def _run(self, session: pytest.Session) -> None:
        options = self._conductor.options
        found = self._conductor.group(options.fault).collected[0]
        plan = [index for index in range(len(found.cases)) if index % options.shards == options.shard]
        session.testscollected = len(plan)
        if session.config.option.collectonly:
            self._reporter.list_cases([found.cases[index].nodeid for index in plan])
            return
        for info, verdict, record in self._conductor.run(found.cases, plan):
            self._reporter.case(info, verdict, record)
            if session.shouldfail or session.shouldstop:
                break
            if self._conductor.time_is_up():
                not_run = [
                    found.cases[index].nodeid
                    for index in plan
                    if found.cases[index].nodeid not in self._conductor.verdicts
                ]
                if not_run:
                    raise StartError("the target's time is up; not run:\n" + "\n".join(not_run))
