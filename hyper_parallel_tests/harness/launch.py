"""Run test files on ranks.

    python -m hyper_parallel_tests.harness.launch --cards 2 [--jobs] PATH[::case] [-k EXPR] [--pdb-rank 0]

Exit codes are pytest's: 0 all passed, 1 a failure, 2 interrupted, 4 wrong usage, 5 nothing to run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hyper_parallel_tests.faults import catalogues
from hyper_parallel_tests.harness import channel, loading, processes, ranks, rewriting
from hyper_parallel_tests.harness.conductor import Conductor, Terminated, ignore_signals, on_sigterm
from hyper_parallel_tests.harness.contracts import CONTRACT_FILES, ContractError
from hyper_parallel_tests.harness.expectations import Expectations, present_engines
from hyper_parallel_tests.harness.lease import NoCards, lease
from hyper_parallel_tests.harness.options import Options, UsageError, parse
from hyper_parallel_tests.harness.rank import Orders
from hyper_parallel_tests.harness.reporter import Reporter
from hyper_parallel_tests.harness.running import CasesSession


def main(argv: list[str]) -> int:
    """Launch what `argv` asks for; returns the exit code."""
    try:
        options = parse(argv)
        _check_names(options)
    except UsageError as error:
        print(f"launch: {error}", file=sys.stderr)
        return pytest.ExitCode.USAGE_ERROR
    if options.shard_status is not None:
        options.shard_status.touch()
    on_sigterm()
    try:
        with (
            _premature_exit_file(options.premature_exit),
            _folder(options) as folder,
            lease(options.device, options.cards, options.environment, options.queue_limit) as visible,
        ):
            os.environ.update(visible)
            return _launch(options, folder)
    except (NoCards, ContractError) as error:
        print(f"launch: {error}", file=sys.stderr)
        return pytest.ExitCode.TESTS_FAILED
    except KeyboardInterrupt:
        print("launch: SIGINT before the first case", file=sys.stderr)
        return pytest.ExitCode.INTERRUPTED
    except Terminated:
        print("launch: SIGTERM before the first case", file=sys.stderr)
        return pytest.ExitCode.TESTS_FAILED


def _check_names(options: Options) -> None:
    """Refuse an engine or a fault catalogue that is not there, before anything starts.

    Raises:
        UsageError: names what there is.
    """
    engines = present_engines()
    if engines and options.engine not in engines:
        raise UsageError(f"no engine {options.engine!r} here, expected one of {', '.join(engines)}")
    known = catalogues()
    for name in options.faults:
        if "." not in name and name not in known:
            raise UsageError(f"no fault catalogue {name!r} here, expected one of {', '.join(known) or 'none'}")


def _launch(options: Options, folder: Path) -> int:
    os.environ["HYPER_PARALLEL_TESTS_CONDUCTOR"] = str(os.getpid())
    # Plugins that happen to be installed must not change how a case runs, nor cost each start their import.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # numpy's threads, started on import, would make forks of the fork server unsafe, and ranks share the host.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    processes.adopt_orphans()
    rewriting.prepare(options.files)
    ranks.start_fork_server(loading.for_fork_server(options), options.ranks)
    kept = options.outputs or folder
    listener = channel.Listener()
    orders = Orders(listener.address, options, kept, folder, options.fault, os.getcwd(), loading.for_ranks(options))
    reporter = Reporter(options, _statements(options))
    expectations = Expectations(options.engine, options.cards)
    conductors = [
        Conductor(part, replace(orders, options=part), listener, reporter, expectations) for part in options.parts
    ]
    try:
        code = int(pytest.main(_pytest_args(options), plugins=[reporter, _session(conductors, reporter)]))
    finally:
        ignore_signals()
        for conductor in conductors:
            conductor.drop()
        listener.close()
        left = processes.kill(_leftovers())
    if left:
        print(f"launch: processes {left} could not be killed", file=sys.stderr)
        return pytest.ExitCode.TESTS_FAILED
    if options.survey and code == pytest.ExitCode.TESTS_FAILED and not reporter.troubled:
        return pytest.ExitCode.OK
    if code == pytest.ExitCode.NO_TESTS_COLLECTED and (options.test_filter or options.shards > 1):
        return pytest.ExitCode.OK
    return code


def _session(conductors: list[Conductor], reporter: Reporter) -> object:
    if conductors[0].options.faults:
        from hyper_parallel_tests.harness.proving import ProvingSession

        return ProvingSession(conductors, reporter)
    return CasesSession(conductors[0], reporter)


def _pytest_args(options: Options) -> list[str]:
    """The conductor's session takes the reporting half of the arguments; selection is the ranks' business."""
    xml = [f"--junitxml={options.xml}"] if options.xml else []
    plain = [
        "-c",
        os.devnull,
        "--rootdir",
        str(options.root),
        "-rfEs",
        "-o",
        "junit_family=xunit1",
        "-p",
        "no:cacheprovider",
    ]
    # Capturing would take standard input away, which the rank in pdb takes over.
    debug = ["-s"] if options.pdb_rank is not None else []
    return [*plain, "-p", "no:faulthandler", *debug, *xml, *options.pytest_args]


def _statements(options: Options) -> dict[str, str]:
    """Contract id -> its sentence, for the reports, from what says it beside the test files."""
    import tomllib

    said: dict[str, str] = {}
    folders = dict.fromkeys(Path(name.partition("::")[0]).parent for name in options.files)
    for folder, (name, key) in itertools.product(folders, CONTRACT_FILES.items()):
        with contextlib.suppress(OSError, tomllib.TOMLDecodeError):
            entries = tomllib.loads((folder / name).read_text()).get(key, [])
            said |= {one["id"]: one["statement"] for one in entries if "id" in one and "statement" in one}
    return said


def _leftovers() -> list[int]:
    """What still runs below this process, but for multiprocessing's own two servers, which end with it."""
    from multiprocessing import forkserver, resource_tracker

    own = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}
    return [pid for pid in processes.descendants(os.getpid()) if pid not in own]


@contextlib.contextmanager
def _folder(options: Options) -> Iterator[Path]:
    """A folder for everything temporary, also of what torch starts here; gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="hyper_parallel_tests-", dir=options.tmpdir))
    # Sockets of the fork server and of torch need short paths, and Bazel's folders have long ones.
    sockets = Path(tempfile.mkdtemp(prefix="hyper_parallel_tests-", dir="/tmp"))
    ranks.keep_sockets_in(sockets)
    short = sockets / "tmp"
    short.symlink_to(folder.absolute())
    os.environ["TMPDIR"] = tempfile.tempdir = str(short)
    try:
        yield short
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(sockets, ignore_errors=True)


@contextlib.contextmanager
def _premature_exit_file(path: Path | None) -> Iterator[None]:
    """Bazel's mark of a test that left without a verdict: there while it runs."""
    if path is not None:
        path.touch()
    try:
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking down an interpreter that has loaded torch takes longer than a case.
    os._exit(int(code))
