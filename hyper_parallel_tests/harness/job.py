"""One job as the case's rank sees it: start it, follow it, end it."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from hyper_parallel_tests.harness import channel, processes, stacks, starter
from hyper_parallel_tests.harness.evidence import PENDING
from hyper_parallel_tests.harness.job_rank import Leave, Raised, Returned

if TYPE_CHECKING:
    from hyper_parallel_tests.harness.rank import Orders

# Once a rank has failed or died, its peers get this long to say what they saw; then they are stopped.
SETTLE_S = 5.0
# Why ranks were stopped.
LIMIT, PEER_FAILED = "limit", "a peer failed"
# Ranks that run Python code answer within this time; the stacks of others are written on a signal, as quickly.
_ANSWER_S = 1.0
# What was told to end is gone within this time, unless the kernel holds it.
_GONE_S = 10.0
_LOOK_AGAIN_S = 0.5
_LOG_LIMIT = 512 * 2**20
_OUTPUT = 32 * 2**10


class StarterGone(Exception):
    """The process that starts jobs has ended; the text says how."""


@dataclass(eq=False)
class RankOfJob:
    """What one rank of a job did.

    `exit` is its exit code, negative for a signal, None while it runs; `ended_at` the wall clock then; `stopped`
    whether it was ended from outside; `stacks` and `collectives` what it told before that.
    """

    rank: int
    pid: int
    returned: Returned | None = None
    raised: Raised | None = None
    exit: int | None = None
    ended_at: float = 0.0
    stopped: bool = False
    stacks: str = ""
    collectives: tuple[str, ...] = ()
    output: str = ""

    @property
    def works(self) -> bool:
        """Whether it has not told an end yet, and lives."""
        return self.exit is None and self.returned is None and self.raised is None

    @property
    def died(self) -> bool:
        """Whether it ended without a word, and nobody stopped it."""
        return self.exit is not None and not self.stopped and self.returned is None and self.raised is None


class Job:
    """The ranks of one job, from their start to their end; a context, at whose exit nothing of it is left.

    Attributes:
        name: for reports, as `job 2`.
        ranks: one record a rank.
        stopped: why its ranks were stopped; empty where they were not.
    """

    def __init__(
        self,
        by: starter.Starter,
        orders: Orders,
        on_reached: Callable[[str], None],
        number: int,
        cards: int,
        task: bytes,
        module: str,
    ) -> None:
        """Prepare it.

        Args:
            by: who forks its ranks.
            orders: of the case's rank.
            on_reached: told of a fault that takes effect in a rank.
            number, cards, task, module: as in `starter.Launch`.
        """
        from torch.distributed import TCPStore

        self.name = f"job {number}"
        self.stopped = ""
        self.ranks: list[RankOfJob] = []
        self._by = by
        self._on_reached = on_reached
        self._over = True
        self._lines: dict[Connection, RankOfJob] = {}
        self._probes: dict[int, Connection] = {}
        self._asking = threading.Lock()
        self._shown = False
        self._listener = channel.Listener()
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        folder = Path(tempfile.mkdtemp(prefix=f"job{number}-", dir=orders.temporary))
        self._order = starter.Launch(number, cards, self._listener.address, self._store.port, folder, task, module)

    def __enter__(self) -> Job:
        self._say(self._order)
        self._over = False
        while not self.ranks:
            self._hear()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if not self._over:
                self._end()
        finally:
            self._close()

    # -- the starter's line

    def _say(self, order: object) -> None:
        try:
            self._by.line.send(order)
        except OSError:
            self._lost()

    def _hear(self) -> None:
        try:
            said = self._by.line.recv()
        except (EOFError, OSError):
            self._lost()
        if isinstance(said, starter.Started):
            self.ranks = [RankOfJob(rank, pid) for rank, pid in enumerate(said.pids)]
        elif isinstance(said, starter.RankEnded):
            one = self.ranks[said.rank]
            # What it said last is on its way, and only its end tells that nothing follows.
            self._listen_to_the_rest(one)
            one.exit, one.ended_at = said.exit, time.time()
        elif isinstance(said, starter.Over):
            self._over = True

    def _lost(self) -> None:
        self._over = True
        raise StarterGone(self._by.epitaph())

    # -- its ranks

    def follow(self, limit: float | None, settle: float) -> None:
        """Wait for the end of all ranks.

        Args:
            limit: seconds after which they are stopped; None for no limit but the case's own.
            settle: seconds that ranks get once a peer has failed or died.

        Raises:
            StarterGone: and the ranks with it.
        """
        begun = time.monotonic()
        deadline = begun + (float("inf") if limit is None else limit)
        settled = float("inf")
        while not self._over:
            now = time.monotonic()
            if settled == float("inf") and any(one.raised or one.died for one in self.ranks):
                settled = now + settle
            if not any(one.works for one in self.ranks):
                self._part()
                return
            if now >= min(deadline, settled):
                self._stop(LIMIT if deadline <= settled else PEER_FAILED)
                return
            if flooded := [one for one in self.ranks if stacks.size_of(self._order.log(one.rank)) > _LOG_LIMIT]:
                self._stop(f"rank {flooded[0].rank} wrote more than {_LOG_LIMIT // 2**20} MiB of output")
                return
            self._wait(min(deadline, settled, now + _LOOK_AGAIN_S) - now)

    def _wait(self, seconds: float) -> None:
        ready = wait([self._by.line, self._listener.socket, *self._lines], max(0.0, seconds))
        if self._listener.socket in ready:
            self._accept()
        for line in ready:
            if line in self._lines:
                self._listen(line)
        if self._by.line in ready:
            self._hear()

    def _accept(self) -> None:
        pids = {one.pid: one for one in self.ranks}
        while (peer := self._listener.accept()) is not None:
            pid, line = peer
            one = pids.get(pid)
            if one is None:
                line.close()
            elif one in self._lines.values():
                self._probes[one.rank] = line
            else:
                self._lines[line] = one

    def _listen(self, line: Connection) -> None:
        one = self._lines[line]
        try:
            said = line.recv()
        except (EOFError, OSError):
            line.close()
            del self._lines[line]
            return
        if isinstance(said, Returned):
            one.returned = said
        elif isinstance(said, Raised):
            one.raised = said
        elif isinstance(said, channel.Reached):
            self._on_reached(said.fault)

    def _listen_to_the_rest(self, one: RankOfJob) -> None:
        self._accept()
        for line in [line for line, other in self._lines.items() if other is one]:
            while line in self._lines and line.poll():
                self._listen(line)

    def _part(self) -> None:
        """Let ranks go that wait for nothing but their peers' ends."""
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.send(Leave())
        end = time.monotonic() + _GONE_S
        while not self._over and time.monotonic() < end:
            self._wait(end - time.monotonic())
        if not self._over:
            self._end()

    def _stop(self, why: str) -> None:
        """Have ranks that still work say where they are, and end them."""
        self.stopped = why
        working = [one for one in self.ranks if one.works]
        for rank, told in self._ask(working).items():
            self.ranks[rank].stacks, self.ranks[rank].collectives = told.stacks, told.collectives
        for one in working:
            one.stopped = True
        self._end()

    def _end(self) -> None:
        self._say(starter.Kill())
        end = time.monotonic() + _GONE_S
        while not self._over and time.monotonic() < end:
            if self._by.line.poll(_LOOK_AGAIN_S):
                self._hear()
        # The kernel holds one: no further job can be told from this one.
        self._by.gone = not self._over

    # -- evidence

    def evidence(self) -> channel.Evidence | None:
        """What its ranks do at the moment, for the report of a case that is stopped; shows their output too."""
        working = [one for one in self.ranks if one.works]
        told = self._ask(working)
        self.show_output()
        if not told:
            return None
        collectives = [
            f"in rank {rank} of {self.name}: {line}" for rank in sorted(told) for line in told[rank].collectives
        ]
        # What is no dump would be cut off behind one.
        order = sorted(told, key=lambda rank: (bool(stacks.main_thread(told[rank].stacks)), rank))
        dumps = [stacks.of_another(told[rank].stacks, f"rank {rank} of {self.name}") for rank in order]
        first = min(told, key=lambda rank: (waits_for_peers(told[rank].collectives), rank))
        where = (
            f"waits for rank {first} of {self.name}, which {whereabouts(told[first].stacks, told[first].collectives)}"
        )
        return channel.Evidence(tuple(collectives), "\n".join(dumps), where)

    def _ask(self, asked: list[RankOfJob]) -> dict[int, channel.Evidence]:
        """What ranks tell of themselves, by rank; of those that run no Python code any more, what a signal shows."""
        with self._asking:
            probes = {one: self._probes[one.rank] for one in asked if one.rank in self._probes}
            for probe in probes.values():
                with contextlib.suppress(OSError):
                    probe.send("evidence")
            answers: dict[int, channel.Evidence] = {}
            end = time.monotonic() + _ANSWER_S
            for one, probe in probes.items():
                with contextlib.suppress(OSError, EOFError):
                    if probe.poll(max(0.0, end - time.monotonic())):
                        answers[one.rank] = probe.recv()
            silent = {one.rank: (one.pid, self._order.stacks(one.rank)) for one in asked if one.rank not in answers}
            dumps = stacks.by_signal(silent, _ANSWER_S)
            return answers | {rank: channel.Evidence((), dump) for rank, dump in dumps.items()}

    def show_output(self) -> None:
        """Put what the ranks have printed into the output of the case's rank, once."""
        if self._shown:
            return
        self._shown = True
        for one in self.ranks:
            if text := self.output(one):
                print(f"--- output of rank {one.rank} of {self.name} ---\n{text.rstrip()}")
        sys.stdout.flush()

    def output(self, one: RankOfJob) -> str:
        """What a rank has printed; of much the end."""
        with contextlib.suppress(OSError), self._order.log(one.rank).open("rb") as file:
            file.seek(max(0, stacks.size_of(self._order.log(one.rank)) - _OUTPUT))
            return file.read().decode(errors="replace")
        return ""

    def _close(self) -> None:
        for one in self.ranks:
            one.output = self.output(one)
            if one.died:
                with contextlib.suppress(OSError):
                    one.stacks = self._order.stacks(one.rank).read_text(errors="replace")
            processes.drop_shared_memory(one.pid)
        self.show_output()
        for line in [*self._lines, *self._probes.values()]:
            line.close()
        self._listener.close()
        del self._store
        shutil.rmtree(self._order.folder, ignore_errors=True)


def waits_for_peers(collectives: Sequence[str]) -> bool:
    """Whether a rank that told these is in a collective that is not over."""
    return any(PENDING.search(line) for line in collectives)


def whereabouts(dump: str, collectives: Sequence[str]) -> str:
    """In a line where a rank is that has told its stacks and its collectives."""
    pending = [line for line in collectives if PENDING.search(line)]
    if pending:
        return "is " + re.sub(r"^MainThread (?=is inside|waits at)", "", pending[-1]).removeprefix("is ")
    frames = stacks.main_thread(stacks.readable(dump))
    if not frames:
        return f"does not answer; {dump.strip() or 'it has left no Python stacks'}"
    inner, outer = (frame.rpartition("/")[2] for frame in (frames[0], frames[-1]))
    return f"is at {inner}" if inner == outer else f"is at {inner}, called from {outer}"
