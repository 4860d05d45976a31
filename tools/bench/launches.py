"""One launch: a process tree in the environment that all have, with a limit, and the record it leaves."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hyper_parallel_tests.harness import processes
from tools.bench.cases import settings

_KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH")
_TAIL = 8000
# Helpers of a process, such as multiprocessing's resource tracker, see its end a moment later.
_LINGER_S = 10.0


class LaunchError(Exception):
    """A launch failed or did not end in time; the text holds the end of what it printed."""


@dataclass(frozen=True)
class Case:
    """One case over all ranks, in seconds of the monotonic clock.

    `own` is the shortest time that any rank spent inside the case: where others waited there for a rank that
    was told late, that is the launcher's doing.
    """

    ended: float
    own: float


def environment(root: Path, record: Path, ranks: int, cases: int, fresh_ranks: bool = False) -> dict[str, str]:
    """What every contender's process sees: the caller's paths, one thread a rank, the loopback."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([str(root), *filter(None, sys.path)])),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        settings.RECORD: str(record),
        settings.RANKS: str(ranks),
        settings.CASES: str(cases),
        settings.FRESH_RANKS: "1" if fresh_ranks else "0",
    }


class Launch:
    """A running launch; as a context manager it leaves no process behind.

    Attributes:
        started: seconds of the monotonic clock just before the process began.
        ended: the same when its end was seen; `started` before.
        cpu_s: processor seconds of all its processes, once `left_behind` has seen their end.
    """

    def __init__(self, command: list[str], directory: Path, environment: dict[str, str], output: Path) -> None:
        processes.adopt_orphans()
        self._cpu_before = _cpu_of_children()
        self.cpu_s = 0.0
        self._command = command
        self._output = output
        with output.open("wb") as sink:
            self.started = self.ended = time.monotonic()
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *exception: object) -> None:
        processes.kill(processes.descendants(os.getpid()))
        self._process.wait()

    def wait(self, seconds: float) -> int | None:
        """The exit code, None where the process still runs after `seconds`."""
        if self._process.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
                self.ended = time.monotonic()
        return self._process.returncode

    def abort(self) -> None:
        """End the first process, its Python stacks at the end of its output."""
        self.ended = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGABRT)
        self.wait(_LINGER_S)

    def left_behind(self) -> list[str]:
        """Processes of an ended launch that do not end with it, each as its id and command."""
        end = time.monotonic() + _LINGER_S
        while left := [pid for pid in processes.descendants(os.getpid()) if processes.is_running(pid)]:
            if time.monotonic() > end:
                break
            time.sleep(0.01)
        processes.reap()
        self.cpu_s = _cpu_of_children() - self._cpu_before
        return [f"{pid} ({processes.command_of(pid)})" for pid in left]

    def story(self, what: str) -> str:
        """`what` happened, of which command, and the end of what it printed."""
        said = self._output.read_bytes()[-_TAIL:].decode(errors="replace").strip()
        return f"{' '.join(self._command)}\n{what}; it said:\n{said or 'nothing'}"


def run(command: list[str], directory: Path, environment: dict[str, str], output: Path, limit_s: float) -> Launch:
    """Run one launch to its end.

    Raises:
        LaunchError: it failed, took more than `limit_s` seconds, or left processes behind.
    """
    with Launch(command, directory, environment, output) as launch:
        code = launch.wait(limit_s)
        if code is None:
            launch.abort()
            raise LaunchError(launch.story(f"did not end within {limit_s:.0f} s"))
        if code != 0:
            raise LaunchError(launch.story(processes.exit_text(code)))
        if left := launch.left_behind():
            raise LaunchError(launch.story(f"left behind {', '.join(left)}"))
    return launch


def _cpu_of_children() -> float:
    """Processor seconds of this process' ended descendants, orphans included since it adopts them."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def read_record(path: Path, ranks: int) -> dict[int, Case]:
    """The cases that ended on all `ranks` ranks, by number."""
    times: dict[int, dict[int, tuple[float, float]]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        number, rank, begun, ended = map(int, line.split())
        times.setdefault(number, {})[rank] = (begun / 1e9, ended / 1e9)
    return {
        number: Case(max(ended for _, ended in of.values()), min(ended - begun for begun, ended in of.values()))
        for number, of in sorted(times.items())
        if len(of) == ranks
    }
