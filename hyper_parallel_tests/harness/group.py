"""One group of ranks over its life: come up, collect, run case after case in lockstep, end."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from hyper_parallel_tests.harness import channel, processes, ranks, stacks
from hyper_parallel_tests.harness.evidence import PENDING
from hyper_parallel_tests.harness.rank import Orders, main

# Once a rank has failed or died, its peers get this long to say what they saw; then they are stopped.
SETTLE_S = 5.0
# Why the ranks of a case were stopped; any other reason lies outside of the case.
WATCHDOG, PEER_FAILED = "watchdog", "a peer failed"
# A rank answers a request for its stacks or its collectives within this time, or not at all.
_ANSWER_S = 3.0
# The exit code of a rank whose line is cut is known within this time, or it has closed the line itself.
_EXIT_S = 10.0
_NO_ANSWER = "no answer: the process does not run Python code any more"
_LOG_LIMIT = 512 * 2**20
_HEAD, _TAIL = 8 * 2**10, 24 * 2**10


class StartError(Exception):
    """The ranks did not come up; the text says which, and what they left in their logs."""


class UsageError(StartError):
    """The ranks' pytest sessions refused their arguments."""


@dataclass(frozen=True)
class _Offsets:
    """Where a case's part of a rank's files begins, in bytes."""

    log: int
    stacks: int


@dataclass
class RankRecord:
    """What one rank did in one case."""

    rank: int
    phases: list[channel.Phase] = field(default_factory=list)
    done: channel.Done | None = None
    exit_code: int | None = None
    died_at: float | None = None
    reached: bool = False
    stacks: str = ""
    collectives: tuple[str, ...] = ()
    where: str = ""
    output: str = ""

    @property
    def finished(self) -> bool:
        return self.done is not None or self.died_at is not None

    @property
    def failed(self) -> bool:
        return any(phase.kind not in {"passed", "skipped"} for phase in self.phases)

    @property
    def declined(self) -> bool:
        """Whether the case ended on this rank since the engine does not offer a member, and for no other reason."""
        kinds = {phase.kind for phase in self.phases} - {"passed", "skipped"}
        return kinds == {"not-offered"}


@dataclass
class CaseRecord:
    """What all ranks did in one case.

    `stopped` says why unfinished ranks were stopped, empty where none was; `fault` names the fault that was on.
    """

    ranks: list[RankRecord]
    started: float
    seconds: float = 0.0
    limit: float = 0.0
    stopped: str = ""
    fault: str = ""

    @property
    def troubled(self) -> bool:
        """Whether a rank has failed or died so far."""
        return any(one.failed or one.died_at is not None for one in self.ranks)

    @property
    def clean(self) -> bool:
        """Whether the same processes may run the next case."""
        if any(one.done is None or one.done.rebuild for one in self.ranks):
            return False
        # Where all ranks declined none is in a collective that another has left.
        return all(one.declined for one in self.ranks) or not any(one.failed for one in self.ranks)

    @property
    def together(self) -> bool:
        """Whether all ranks have failed alike, behind the same collectives: none waits for another."""
        if self.stopped or any(one.done is None or one.done.rebuild for one in self.ranks):
            return False
        ends = {tuple((phase.when, phase.kind, phase.exception) for phase in one.phases) for one in self.ranks}
        collectives = {one.collectives for one in self.ranks}
        if len(ends) > 1 or len(collectives) > 1:
            return False
        in_call = [when for when, _, _ in ends.pop()] == ["call"]
        return in_call and not any(line == _NO_ANSWER or PENDING.search(line) for line in collectives.pop())


class Group:
    """A group of ranks that is up and has collected.

    Attributes:
        fault: the fault that is on, empty for none.
        spent: whether its ranks may run no further case.
        kept: whether they went on after a case that had failed.
    """

    def __init__(self, orders: Orders, listener: channel.Listener, fault: str = "") -> None:
        options = orders.options
        self._orders = orders
        self._listener = listener
        try:
            self._ranks = ranks.start(main, (orders,), options.ranks, options.start_method)
        except ranks.ForkServerError as error:
            raise StartError(str(error)) from error
        self._lines: list[Connection | None] = [None] * options.ranks
        self._probes: list[Connection | None] = [None] * options.ranks
        self.fault = fault
        self.spent = False
        self.kept = False
        try:
            self.collected = self._wait_until_collected(options.startup)
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> list[int]:
        return self._ranks.pids

    # -- start

    def _wait_until_collected(self, limit_s: float) -> list[channel.Collected]:
        collected: dict[int, channel.Collected] = {}
        end = time.monotonic() + limit_s
        while len(collected) < len(self._lines):
            self._accept()
            for rank, line in enumerate(self._lines):
                if line is not None and rank not in collected and line.poll():
                    collected[rank] = self._first_word(rank, line)
            dead = [rank for rank in range(len(self._lines)) if self._ranks.exit_code(rank) is not None]
            missing = [rank for rank in dead if rank not in collected]
            if missing or time.monotonic() > end:
                raise StartError(
                    self._start_failure(missing or sorted(set(range(len(self._lines))) - collected.keys()), limit_s)
                )
            known = [line for line in self._lines if line is not None]
            multiprocessing.connection.wait(
                [self._listener.socket, *known] if len(collected) < len(known) else [self._listener.socket],
                0.05,
            )
        return [collected[rank] for rank in range(len(self._lines))]

    def _first_word(self, rank: int, line: Connection) -> channel.Collected:
        try:
            word = line.recv()
        except (EOFError, OSError):
            raise StartError(self._start_failure([rank], 0.0)) from None
        if isinstance(word, channel.NotStarted):
            said = _excerpt(self._orders.log(rank), 0).strip()
            kind = UsageError if word.exit_code == pytest.ExitCode.USAGE_ERROR else StartError
            raise kind(f"pytest did not start on rank {rank} (its exit code: {word.exit_code})\n{said}")
        return word

    def _accept(self) -> None:
        while (peer := self._listener.accept()) is not None:
            pid, line = peer
            if pid not in self._ranks.pids:
                line.close()
                continue
            rank = self._ranks.pids.index(pid)
            if self._lines[rank] is None:
                self._lines[rank] = line
            else:
                self._probes[rank] = line

    def _start_failure(self, missing: list[int], limit_s: float) -> str:
        time.sleep(0.1)
        said = []
        up = [rank for rank in missing if self._ranks.exit_code(rank) is None]
        stuck = self._stacks(up, self._ask(up))
        for rank in missing:
            code = self._ranks.exit_code(rank)
            how = processes.exit_text(code) if code is not None else f"not up after {limit_s:.0f} s"
            where = stuck.get(rank) or stacks.readable(_read_from(self._orders.stacks(rank), 0))
            said.append(f"rank {rank}: {how}\n{_excerpt(self._orders.log(rank), 0)}{where}")
        return "ranks did not come up\n" + "\n".join(said)

    # -- cases

    def run(self, order: channel.Run, limit_s: float) -> CaseRecord:
        """Run one case on all ranks; returns when each has finished, died or been stopped after `limit_s` seconds."""
        record = CaseRecord(
            [RankRecord(rank) for rank in range(len(self._lines))], time.time(), limit=limit_s, fault=self.fault
        )
        offsets = [
            _Offsets(stacks.size_of(self._orders.log(rank)), stacks.size_of(self._orders.stacks(rank)))
            for rank in range(len(self._lines))
        ]
        begun = time.monotonic()
        # Also if an impatient person interrupts what follows once more.
        self.spent = True
        for rank, line in enumerate(self._lines):
            try:
                line.send(order)
            except OSError:
                self._bury(record.ranks[rank])
        try:
            self._follow(record, begun + limit_s, offsets)
        except BaseException as interruption:
            how = "SIGINT" if isinstance(interruption, KeyboardInterrupt) else str(interruption)
            record.stopped = f"interrupted by {how}"
            raise Interrupted(record) from interruption
        finally:
            self._gather_evidence(record, offsets)
            record.seconds = time.monotonic() - begun
            self.spent = not record.clean
        return record

    def _follow(self, record: CaseRecord, deadline: float, offsets: list[_Offsets]) -> None:
        settle = float("inf")
        # Without a limit a person is at a rank, and its peers wait as long as the person likes.
        patient = deadline == float("inf")
        while waiting := [one for one in record.ranks if not one.finished]:
            now = time.monotonic()
            if settle == float("inf") and not patient and record.troubled:
                settle = now + SETTLE_S
            if now >= min(deadline, settle):
                record.stopped = WATCHDOG if deadline <= settle else PEER_FAILED
                return
            if any(stacks.size_of(self._orders.log(one.rank)) - offsets[one.rank].log > _LOG_LIMIT for one in waiting):
                record.stopped = f"it wrote more than {_LOG_LIMIT // 2**20} MiB of output"
                return
            lines = {self._lines[one.rank]: one for one in waiting}
            for ready in multiprocessing.connection.wait(list(lines), min(deadline, settle, now + 0.5) - now):
                self._listen(lines[ready], ready)

    def _listen(self, one: RankRecord, line: Connection) -> None:
        try:
            message = line.recv()
        except (EOFError, OSError):
            self._bury(one)
            return
        if isinstance(message, channel.Phase):
            one.phases.append(message)
        elif isinstance(message, channel.Reached):
            one.reached = True
        elif isinstance(message, channel.Done):
            one.done = message

    def _bury(self, one: RankRecord) -> None:
        one.died_at = time.time()
        end = time.monotonic() + _EXIT_S
        while one.exit_code is None and time.monotonic() < end:
            one.exit_code = self._ranks.exit_code(one.rank)
            time.sleep(0.002)

    def keep(self) -> None:
        """Let the same processes run further cases although the last one has failed."""
        self.spent, self.kept = False, True

    # -- evidence

    def _gather_evidence(self, record: CaseRecord, offsets: list[_Offsets]) -> None:
        """Fill in what the report of a troubled case quotes; ranks are asked together, so silent ones cost once."""
        if not record.clean:
            answers = self._ask([one.rank for one in record.ranks if one.died_at is None])
            stuck = self._stacks([one.rank for one in record.ranks if not one.finished], answers)
            for one in record.ranks:
                one.output = _excerpt(self._orders.log(one.rank), offsets[one.rank].log)
                if one.died_at is not None:
                    one.stacks = stacks.readable(_read_from(self._orders.stacks(one.rank), offsets[one.rank].stacks))
                    continue
                one.stacks = stuck.get(one.rank, "")
                one.collectives = answers[one.rank].collectives if one.rank in answers else (_NO_ANSWER,)
                one.where = answers[one.rank].where if one.rank in answers else ""
        for one in record.ranks:
            _shorten(self._orders.log(one.rank), offsets[one.rank].log)

    def _ask(self, asked: list[int]) -> dict[int, channel.Evidence]:
        """What ranks tell of themselves; a rank that runs no Python code any more is missing."""
        self._accept()
        answers: dict[int, channel.Evidence] = {}
        probes = {rank: probe for rank in asked if (probe := self._probes[rank]) is not None}
        for probe in probes.values():
            with contextlib.suppress(OSError):
                probe.send("evidence")
        end = time.monotonic() + _ANSWER_S
        for rank, probe in probes.items():
            with contextlib.suppress(OSError, EOFError):
                if probe.poll(max(0.0, end - time.monotonic())):
                    answers[rank] = probe.recv()
        return answers

    def _stacks(self, asked: list[int], answers: dict[int, channel.Evidence]) -> dict[int, str]:
        """The Python stacks of ranks: from their answers, by faulthandler's signal from those that gave none.

        The signal is the second choice, since its handler may crash beside another thread that runs Python code.
        """
        silent = [rank for rank in asked if rank not in answers]
        found = {rank: stacks.readable(answers[rank].stacks) for rank in asked if rank in answers}
        for rank in found:
            with self._orders.stacks(rank).open("a") as file:
                file.write(answers[rank].stacks)
        asleep = {rank: (self._ranks.pids[rank], self._orders.stacks(rank)) for rank in silent}
        for rank, text in stacks.by_signal(asleep, _ANSWER_S).items():
            found[rank] = stacks.readable(text)
        return found

    # -- end

    def finish(self, grace_s: float = 10.0) -> str:
        """End the session on all ranks; returns what went wrong, empty when all left by themselves."""
        begins = [stacks.size_of(self._orders.log(rank)) for rank in range(len(self._lines))]
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.send(channel.Finish())
        left = self._ranks.leave(grace_s)
        if not left:
            self._close()
            failed = {rank: code for rank in range(len(begins)) if (code := self._ranks.exit_code(rank))}
            said = [f"rank {rank}:\n{_excerpt(self._orders.log(rank), begins[rank])}".strip() for rank in failed]
            how = [
                f"rank {rank} {processes.exit_text(code)} at the end of the session" for rank, code in failed.items()
            ]
            return "\n".join(["; ".join(how), *said]).strip()
        where = "\n".join(f"rank {rank}:\n{text}" for rank, text in self._stacks(left, self._ask(left)).items())
        self.kill()
        return f"ranks {left} did not leave within {grace_s:.0f} s of the end of the session\n{where}"

    def kill(self) -> None:
        """End all ranks at once, with everything that they started."""
        self._ranks.kill()
        self._close()

    def _close(self) -> None:
        """Give back what ranks that are gone held; torch's shared memory outlives a process that was killed."""
        for line in [*self._lines, *self._probes]:
            if line is not None:
                line.close()
        for pid in [*self._ranks.pids, *self._orders.pids_of_jobs()]:
            processes.drop_shared_memory(pid)


class Interrupted(Exception):
    """The conductor was told to stop in the middle of a case; `record` holds what was seen until then."""

    def __init__(self, record: CaseRecord) -> None:
        super().__init__(record.stopped)
        self.record = record


def _read_from(path: Path, start: int) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(start)
        return file.read(2**20).decode(errors="replace")
    return ""


def _excerpt(path: Path, start: int) -> str:
    """The part of a log after `start`, its middle left out where it is long."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        length = stacks.size_of(path) - start
        file.seek(start)
        if length <= _HEAD + _TAIL:
            return file.read().decode(errors="replace")
        head = file.read(_HEAD)
        file.seek(start + length - _TAIL)
        return head.decode(errors="replace") + _left_out(length) + file.read().decode(errors="replace")
    return ""


def _shorten(path: Path, start: int) -> None:
    """Keep a flooded log small: what `_excerpt` would leave out leaves the file too."""
    if stacks.size_of(path) - start > 2**20:
        kept = _excerpt(path, start).encode()
        os.truncate(path, start)
        with path.open("ab") as file:
            file.write(kept)


def _left_out(length: int) -> str:
    return f"\n[... {length - _HEAD - _TAIL} bytes of output left out ...]\n"
