"""What a process tells of itself while a case runs: its latest collectives and its stacks."""

from __future__ import annotations

import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Protocol

from hyper_parallel_tests.harness import channel, stacks

# When the running case began: the recorder of collectives is one per process and remembers earlier cases.
started_ns = 0


class Busy(Protocol):
    """Another process that may work for this one."""

    def evidence(self) -> channel.Evidence | None:
        """What it does at the moment, None if nothing for this process."""


def answer_probes(line: Connection, other: Busy | None = None) -> None:
    """Tell what the other threads are doing whenever asked: the main thread may be stuck in a collective."""
    while True:
        try:
            line.recv()
            line.send(_joined(other))
        except (EOFError, OSError):
            return


def _joined(other: Busy | None) -> channel.Evidence:
    """What this process tells, and after it the one that it waits for."""
    own = channel.Evidence(_last_collectives(), stacks.of_this_process())
    theirs = other.evidence() if other is not None else None
    if theirs is None:
        return own
    # The main thread that counts comes last; what is no dump of stacks would be cut off there.
    both = [own.stacks, theirs.stacks] if stacks.main_thread(theirs.stacks) else [theirs.stacks, own.stacks]
    return replace(own, collectives=own.collectives + theirs.collectives, stacks="\n".join(both))


def _last_collectives() -> tuple[str, ...]:
    if "torch.distributed" not in sys.modules:
        return ()
    from hyper_parallel_tests.harness.judging import flight

    try:
        return tuple(flight.last_collectives(10, since_ns=started_ns))
    except Exception as error:
        return (f"the flight recorder cannot be read: {type(error).__name__}: {error}",)
