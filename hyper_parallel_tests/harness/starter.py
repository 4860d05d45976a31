"""The starter of jobs: a process of a rank that only forks, collects and ends the ranks of jobs.

It is forked off the rank before that has threads, so that its forks are safe, and has loaded what the rank has, so that
they are quick. It sleeps until there is a job. Ranks of jobs go with the starter, and the starter with its rank,
however that ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hyper_parallel_tests.harness import job_rank, processes

if TYPE_CHECKING:
    from hyper_parallel_tests.harness.rank import Orders


@dataclass(frozen=True)
class Launch:
    """Order: fork the ranks of one job.

    Attributes:
        number: of the job among those of its case, from 1.
        cards: ranks to fork.
        address: where they report, see `channel.connect`.
        port: of the store on the loopback at which they meet.
        folder: of the job, gone with it.
        task: what each of them does, packed.
        module: the one that the task is of.
    """

    number: int
    cards: int
    address: str
    port: int
    folder: Path
    task: bytes
    module: str

    def log(self, rank: int) -> Path:
        """Where a rank's standard output and error go."""
        return self.folder / f"rank{rank}.log"

    def stacks(self, rank: int) -> Path:
        """Where a rank's Python stacks go, on request and when a signal kills it."""
        return self.folder / f"rank{rank}.stacks"

    def temporary(self, rank: int) -> Path:
        """The folder for a rank's temporary files."""
        return self.folder / f"rank{rank}.tmp"


@dataclass(frozen=True)
class Kill:
    """Order: end the ranks of the job."""


@dataclass(frozen=True)
class Started:
    """The ranks are forked; `pids[r]` is the process of rank r."""

    pids: tuple[int, ...]


@dataclass(frozen=True)
class RankEnded:
    """A rank's process has ended: with an exit code, or by a signal, whose number is negative then."""

    rank: int
    exit: int


@dataclass(frozen=True)
class Over:
    """No rank of the job is left, nor anything that one has started."""


class Starter:
    """The rank's end.

    Attributes:
        line: what it says: `Started`, a `RankEnded` for each rank, `Over`. EOFError once it is gone.
        pid: its process.
        gone: whether it has ended before its rank.
    """

    def __init__(self, orders: Orders) -> None:
        self.gone = False
        self.line, line = multiprocessing.Pipe()
        sys.stdout.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self.line.close()
            _live(parent, line, orders)
        line.close()

    def epitaph(self) -> str:
        """How it has ended."""
        self.gone = True
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
            return processes.exit_text(os.waitstatus_to_exitcode(status))
        return "gone"


def _live(parent: int, line: Connection, orders: Orders) -> NoReturn:
    """The starter's whole life."""
    code = 70
    try:
        # What a rank of a job has started has no tie to anybody, so that it is ended here, whoever was killed.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(code))
        processes.die_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(code)
        # What outlives a rank of a job is then still seen, and ended with the job.
        processes.adopt_orphans()
        job_rank.prepare(orders)
        _serve(line, orders)
        code = 0
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        processes.kill(processes.descendants(os.getpid()))
        for pid in orders.pids_of_jobs():
            processes.drop_shared_memory(pid)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


def _serve(line: Connection, orders: Orders) -> None:
    """Fork, collect and end ranks until the rank lets go."""
    noticed = _notice_ends_of_children()
    running: dict[int, int] = {}
    while True:
        ready = wait([line, noticed])
        if noticed in ready:
            noticed.recv(4096)
        if line in ready:
            try:
                order = line.recv()
            except (EOFError, ConnectionError):
                return
            if isinstance(order, Launch):
                running = {pid: rank for rank, pid in enumerate(_fork(orders, order, line, noticed))}
                line.send(Started(tuple(running)))
            else:
                # Their ends are told below, so they are not waited for here.
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
        for pid, code in _ended():
            if pid in running:
                line.send(RankEnded(running.pop(pid), code))
                if not running:
                    processes.kill(processes.descendants(os.getpid()))
                    line.send(Over())


def _notice_ends_of_children() -> socket.socket:
    """A socket that can be read from whenever a child has ended."""
    noticed, notify = socket.socketpair()
    for end in (noticed, notify):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(notify.detach(), warn_on_full_buffer=False)
    return noticed


def _ended() -> Iterator[tuple[int, int]]:
    """Process id and exit code of each child that has ended, adopted ones too."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found[0], os.waitstatus_to_exitcode(found[1])


def _fork(orders: Orders, launch: Launch, line: Connection, noticed: socket.socket) -> list[int]:
    sys.stdout.flush()
    parent = os.getpid()
    pids: list[int] = []
    for rank in range(launch.cards):
        pid = os.fork()
        if pid == 0:
            notify = signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.close(notify)
            noticed.close()
            line.close()
            job_rank.live(parent, orders, launch, rank)
        pids.append(pid)
    with orders.jobs.open("a") as noted:
        print(*pids, file=noted)
    return pids
