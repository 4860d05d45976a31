"""The clean sibling of a rank: a process that never imports the engine, for baselines.

It is forked off the rank before the rank has threads, a process group or the engine, and sleeps until there is a
baseline to compute. Being a child of the rank it goes with it, however the rank ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hyper_parallel_tests.harness import channel, evidence, hygiene, loading, processes, stacks
from hyper_parallel_tests.harness.options import Options

if TYPE_CHECKING:
    from hyper_parallel_tests.harness.judging import clean

# A process that runs Python code answers within this time; another one's stacks are written on a signal.
_ANSWER_S = 1.0
_NAME = "the baseline's process"


class Sibling:
    """The rank's end.

    Attributes:
        pid: its process.
        gone: whether it has ended before its rank.
    """

    def __init__(self, options: Options, rank: int, size: int, log: Path) -> None:
        """Fork it; `log` is where its stacks go."""
        self.gone = False
        self._rank, self._log, self._busy = rank, log, False
        self._line, line = multiprocessing.Pipe()
        self._probe, probe = multiprocessing.Pipe()
        sys.stdout.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._line.close()
            self._probe.close()
            _live(parent, line, probe, _Place(options, rank, size, log))
        line.close()
        probe.close()

    def answer(self, job: bytes) -> clean.Answer:
        """Have a job done there; see `clean.Process`."""
        from hyper_parallel_tests.harness.judging import clean

        self._busy = True
        try:
            self._line.send_bytes(job)
            return self._line.recv()
        except (EOFError, OSError):
            self.gone = True
            raise clean.BaselineError(self._epitaph()) from None
        finally:
            self._busy = False

    def _epitaph(self) -> str:
        how = "gone"
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
            how = processes.exit_text(os.waitstatus_to_exitcode(status))
        said = f"the clean process of rank {self._rank} was gone before its baseline was computed: {how}"
        return f"{said}\n{stacks.readable(self._log.read_text(errors='replace'))}".strip()

    def evidence(self) -> channel.Evidence | None:
        """What it does for its rank, None if it sleeps."""
        if not self._busy:
            return None
        with contextlib.suppress(EOFError, OSError):
            self._probe.send("evidence")
            if self._probe.poll(_ANSWER_S):
                found = self._probe.recv()
                collectives = tuple(f"in {_NAME}: {line}" for line in found.collectives)
                return channel.Evidence(collectives, stacks.of_another(found.stacks, _NAME))
        written = stacks.by_signal({self.pid: (self.pid, self._log)}, _ANSWER_S)
        return channel.Evidence((), stacks.of_another(written[self.pid], _NAME))


@dataclass(frozen=True)
class _Place:
    """Where a sibling stands."""

    options: Options
    rank: int
    size: int
    log: Path


def part(options: Options, late: Sequence[str] | None, rank: int, size: int, log: Path) -> Sibling | None:
    """Fork the process for baselines where the engine changes torch, and then let the engine do so here.

    Args:
        late: what is imported after the fork; None where the engine leaves torch alone and no sibling is needed.
        log: where its stacks go.
    """
    if late is None:
        return None
    sibling = Sibling(options, rank, size, log)
    from hyper_parallel_tests.harness.judging import clean

    clean.run_in(sibling)
    for name in late:
        # What cannot be imported is an error where it is used, as with what the fork server loads.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return sibling


def _live(parent: int, line: Connection, probe: Connection, place: _Place) -> NoReturn:
    """The sibling's whole life."""
    code = 70
    try:
        processes.die_with_parent()
        if os.getppid() != parent:
            os._exit(code)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        file = place.log.open("a")
        faulthandler.enable(file, all_threads=True)
        faulthandler.register(stacks.SIGNAL, file, all_threads=True, chain=False)
        sys.path += loading.roots(place.options)
        threading.Thread(target=evidence.answer_probes, args=(probe,), name="probe", daemon=True).start()
        _serve(line, place)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


def _serve(line: Connection, place: _Place) -> None:
    """Do one job after the other until the rank lets go."""
    ready = False
    while True:
        try:
            job = line.recv_bytes()
        except EOFError:
            return
        evidence.started_ns = time.time_ns()
        try:
            if not ready:
                _join(place)
                ready = True
            line.send(_do(job, place.options.engine))
        finally:
            sys.stdout.flush()


def _join(place: _Place) -> None:
    """Be one of as many siblings as there are ranks, on the rank's device."""
    from hyper_parallel_tests.harness import world

    world.device_of(place.options.device)
    if place.options.process_group:
        world.join_process_group(place.options.device, place.rank, place.size, siblings=True)


def _do(job: bytes, engine: str) -> clean.Answer:
    from hyper_parallel_tests.harness.judging import clean

    before = hygiene.Snapshot.take()
    answer = clean.answer(job)
    if answer.error:
        return answer
    if left := before.leaks(own_process_group=False):
        return clean.Answer(error=f"it {'; it '.join(left)}")
    # The package alone, which says of itself what it changes, changes nothing.
    if loaded := sorted(name for name in sys.modules if name.startswith(f"hyper_parallel_tests.engines.{engine}.")):
        return clean.Answer(error=f"it has imported the engine ({loaded[0]}): no baseline here is clean any more")
    return answer
