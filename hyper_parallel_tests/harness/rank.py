"""A rank: one pytest session that runs the cases it is told to, when it is told to, and reports each phase."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from hyper_parallel_tests.harness import (
    channel,
    evidence,
    fixtures,
    hygiene,
    jobs,
    marks,
    processes,
    ranks,
    seeding,
    sibling,
    stacks,
)
from hyper_parallel_tests.harness.options import Options
from hyper_parallel_tests.harness.sibling import Sibling
from hyper_parallel_tests.harness.starter import Starter


@dataclass(frozen=True)
class Orders:
    """What every rank of a group is started with.

    `late` names what a rank imports after it has forked a clean sibling; None where it needs no sibling.
    """

    address: str
    options: Options
    folder: Path
    temporary: Path
    fault: str
    directory: str
    late: tuple[str, ...] | None = None

    def log(self, rank: int) -> Path:
        """Where a rank's standard output and error go, in the order of writing."""
        return self.folder / f"rank{rank}.log"

    def stacks(self, rank: int) -> Path:
        """Where a rank's Python stacks go, on request and when a signal kills it."""
        return self.folder / f"rank{rank}.stacks"

    @property
    def jobs(self) -> Path:
        """Where the process ids of the ranks of jobs are noted, for whoever is left to clean up."""
        return self.temporary / "pids of jobs"

    def pids_of_jobs(self) -> list[int]:
        """The ranks of all jobs that were started, living or dead."""
        return [int(pid) for pid in self.jobs.read_text().split()] if self.jobs.exists() else []

    def sibling_stacks(self, rank: int) -> Path:
        """The same of a rank's clean sibling."""
        return self.folder / f"rank{rank}.sibling.stacks"


def main(orders: Orders) -> None:
    """Run one rank from start to end; never returns, the process ends here."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    _settle_in(orders, rank)
    # Forked first: it must have neither threads nor the engine's changes to torch.
    starter = Starter(orders) if orders.options.jobs else None
    clean = sibling.part(orders.options, orders.late, rank, size, orders.sibling_stacks(rank))
    line = channel.connect(orders.address)
    probed = (channel.connect(orders.address), [one for one in (clean, jobs.Running()) if one is not None])
    threading.Thread(target=evidence.answer_probes, args=probed, name="probe", daemon=True).start()
    reporter = _Reporter(line, orders, rank, size, clean)
    if starter is not None:
        jobs.serve(starter, orders, reporter.reached)
    try:
        code = pytest.main(_pytest_args(orders.options, rank), plugins=[fixtures, reporter])
        if not reporter.announced:
            line.send(channel.NotStarted(int(code)))
        ended_well = code != pytest.ExitCode.INTERNAL_ERROR
    except BaseException:
        traceback.print_exc()
        ended_well = False
    _flush()
    # The interpreter's own way out would wait for whatever threads a case has left and costs each group time.
    os._exit(0 if ended_well else 70)


def _flush() -> None:
    """Have what was printed in the log, where a case has not closed it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _settle_in(orders: Orders, rank: int) -> None:
    """Tie this process to its group: its death, its output, its stacks, its folder."""
    processes.die_with_parent()
    # Off in the fork server; what that has loaded lives as long as the rank and need not be looked at.
    gc.freeze()
    gc.enable()
    ranks.let_fork_server_go()
    # A child of the fork server would use one too, where the code under test expects what torchrun gives.
    multiprocessing.set_start_method(None, force=True)
    # A process that outlives its own parent is then still seen, and on the rank whose case has started it.
    processes.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if orders.options.pdb_rank == rank:
        _take_terminal(os.environ["HYPER_PARALLEL_TESTS_CONDUCTOR"])
    else:
        log = os.open(orders.log(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        # What a case prints must be there when it hangs or dies.
        sys.stdout.reconfigure(line_buffering=True)
    file = open(orders.stacks(rank), "a")  # noqa: SIM115  faulthandler writes to it until the end
    faulthandler.enable(file, all_threads=True)
    faulthandler.register(stacks.SIGNAL, file, all_threads=True, chain=False)
    os.chdir(orders.directory)
    own = orders.temporary / f"rank{rank}.tmp"
    own.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(own)
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "128")
    # torch would choose this itself, on the first optimizer, and the case would seem to have changed the environment.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(own / "inductor"))


def _take_terminal(conductor: str) -> None:
    """Give this rank the conductor's terminal: multiprocessing has closed its own standard input."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    terminal = os.open(f"/proc/{conductor}/fd/0", os.O_RDONLY)
    os.dup2(terminal, 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115


def _pytest_args(options: Options, rank: int) -> list[str]:
    debug = ["--pdb"] if options.pdb_rank == rank else []
    plain = [
        "-c",
        os.devnull,
        "--rootdir",
        str(options.root),
        # Without this pytest lists every folder from the file system's root on, and runs a conftest.py that lies there.
        "--confcutdir",
        str(options.root),
        "--import-mode=importlib",
        "--strict-markers",
        "-s",
    ]
    brief = ["--tb=short", "-o", "log_level=WARNING"]
    without = [
        word
        for name in ("cacheprovider", "faulthandler", "junitxml", "unraisableexception")
        for word in ("-p", f"no:{name}")
    ]
    return [*plain, *brief, *without, *debug, *_for_ranks(options.pytest_args), *options.files]


def _for_ranks(pytest_args: Sequence[str]) -> list[str]:
    """Arguments without those of which only the conductor makes a file."""
    return [word for word in pytest_args if not word.startswith(("--junitxml=", "--junit-xml="))]


class _Reporter:
    """The pytest plugin of a rank: runs on orders, reports each phase."""

    def __init__(self, line: Connection, orders: Orders, rank: int, size: int, sibling: Sibling | None) -> None:
        self._line = line
        self._orders = orders
        self._rank = rank
        self._size = size
        self._sibling = sibling
        self._errors: list[str] = []
        self._deselected = 0
        self._reached_in_case = False
        self._pid = os.getpid()
        self._strayed = Path(tempfile.gettempdir()) / "a forked child came back"
        # Backward may reach a fault on autograd's threads.
        self._sending = threading.Lock()
        self.announced = False

    # -- start

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self._orders.options.pdb_rank != self._rank:
            config.pluginmanager.unregister(reporter)
        fixtures.prepare(config, self._orders.options, self._rank, self._size, self._orders.folder)
        if self._orders.fault:
            from hyper_parallel_tests.faults import FaultDoesNotFit, apply

            try:
                apply(self._orders.fault, self._rank, self.reached, self._orders.options.faults)
            except (FaultDoesNotFit, KeyError) as error:
                self._errors.append(str(error.args[0]))
            except Exception as error:
                where = traceback.format_exception(error, limit=-2)
                self._errors.append(f"fault {self._orders.fault} fails when it is applied:\n{''.join(where)}")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        wanted = self._orders.options.test_filter
        # Where faults are proven the filter is for their names.
        if not wanted or self._orders.options.faults:
            return
        kept = [item for item in items if wanted in item.nodeid]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._deselected += len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._errors.append(f"{report.nodeid or 'collection'}: {report.longreprtext}")
        elif report.skipped:
            self._errors.append(f"{report.nodeid}: a whole file may not be skipped: {_skip_reason(report)}")

    # -- the loop

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        cases = tuple(_case_info(item, self._orders.options) for item in session.items)
        version = str(getattr(fixtures.engine_of(session.config), "version", ""))
        self._send(channel.Collected(cases, tuple(self._errors), version, self._deselected))
        self.announced = True
        while isinstance(order := self._line.recv(), channel.Run):
            following = None if order.following is None else session.items[order.following]
            self._run(session.items[order.index], following)
        return True

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        evidence.started_ns = time.time_ns()
        self._reached_in_case = False
        jobs.begin_case()
        before = hygiene.Snapshot.take()
        seeding.seed_all(self._orders.options.device)
        own = item.get_closest_marker("own_process_group") is not None
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except (pytest.exit.Exception, KeyboardInterrupt) as error:
            # pytest would end the session; a case must not take the others with it. In pdb a person means the session.
            if self._orders.options.pdb_rank == self._rank:
                raise
            self._send(_exit_phase(error))
        for leak in [*before.leaks(own), *self._strays()]:
            self._send(channel.Phase("teardown", "leak", time.time(), 0.0, leak, leak))
        rebuild = "the case owns its process group" if own else ""
        if hygiene.group_count() > hygiene.MAX_GROUPS:
            rebuild = f"{hygiene.group_count()} process groups are open"
        if self._sibling is not None and self._sibling.gone:
            rebuild = "its clean process is gone"
        if jobs.starter_is_gone():
            rebuild = "the process that starts its jobs is gone"
        _flush()
        self._send(channel.Done(item.nodeid, rebuild))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        phase = _phase(report, call)
        # Done says that the rest passed; each message would wake the conductor beside ranks that need the processor.
        if phase.kind != "passed":
            self._send(phase)
        return report

    def reached(self, fault: str) -> None:
        """A fault took effect, here or in a job of this rank."""
        if not self._reached_in_case:
            self._reached_in_case = True
            self._send(channel.Reached(fault))

    def _send(self, message: object) -> None:
        if os.getpid() != self._pid:
            self._strayed.touch()
            os._exit(70)
        with self._sending:
            self._line.send(message)

    def _strays(self) -> list[str]:
        """Whether a child that the case forked ran on in the rank's code, which would speak for the rank twice."""
        if not self._strayed.exists():
            return []
        self._strayed.unlink()
        return ["a child process that the case forked came back from the case; end such a child with os._exit()"]


def _case_info(item: pytest.Item, options: Options) -> channel.CaseInfo:
    doc = (getattr(getattr(item, "function", None), "__doc__", "") or "").strip().partition("\n")[0]
    own = item.get_closest_marker("own_process_group") is not None
    return channel.CaseInfo(
        item.nodeid,
        item.location,
        marks.contracts_of(item),
        marks.limit_of(item, options),
        own,
        doc,
        item.get_closest_marker("collectives_only") is not None,
    )


def _phase(report: pytest.TestReport, call: pytest.CallInfo[None]) -> channel.Phase:
    kind, summary, exception = "passed", "", ""
    if report.skipped:
        kind, summary = "skipped", _skip_reason(report)
    elif report.failed:
        error = call.excinfo
        asserted = error is not None and issubclass(error.type, (AssertionError, pytest.fail.Exception))
        kind = "assertion" if asserted else "not-offered" if error is not None and _declined(error.value) else "error"
        summary = error.exconly(tryshort=False) if error is not None else report.longreprtext
        if error is not None and isinstance(error.value, jobs.OfJob):
            kind, summary = error.value.kind, f"{error.type.__name__}: {error.value.headline}"
        exception = error.type.__name__ if error is not None else ""
    sections = "".join(f"\n--- {title} ---\n{text[-4000:]}" for title, text in report.sections if "log" in title)
    text = channel.bounded(report.longreprtext) + sections
    return channel.Phase(report.when, kind, call.stop, report.duration, channel.bounded(summary), text, exception)


def _declined(error: BaseException) -> bool:
    """Whether the engine said that it does not offer what the case asks for."""
    port = sys.modules.get("hyper_parallel_tests.engines.port")
    return port is not None and isinstance(error, port.EngineUnsupported)


def _exit_phase(error: BaseException) -> channel.Phase:
    """The phase in which a case asked for the end of the whole session."""
    when = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition("(")[2].rstrip(")") or "call"
    summary = f"{type(error).__name__}: {error} (it would end the whole session)"
    text = "".join(traceback.format_exception(error, limit=-3))
    return channel.Phase(
        when, "error", time.time(), 0.0, channel.bounded(summary), channel.bounded(text), type(error).__name__
    )


def _skip_reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected failure: {report.wasxfail}"
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
