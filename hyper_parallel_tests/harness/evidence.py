"""What a process tells of itself while a case runs: its latest collectives and its stacks."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Protocol

from hyper_parallel_tests.harness import channel, stacks

# How a collective that is not over stands among the latest.
PENDING = re.compile(r"\bPENDING\b|\bis inside\b|\bwaits at\b")

# When the running case began: the recorder of collectives is one per process and remembers earlier cases.
started_ns = 0


class Busy(Protocol):
    """Another process that may work for this one."""

    def evidence(self) -> channel.Evidence | None:
        """What it does at the moment, None if nothing for this process."""


def answer_probes(line: Connection, others: Sequence[Busy] = ()) -> None:
    """Tell what the other threads are doing whenever asked: the main thread may be stuck in a collective."""
    while True:
        try:
            line.recv()
            line.send(_joined(others))
        except (EOFError, OSError):
            return


def _joined(others: Sequence[Busy]) -> channel.Evidence:
    """What this process tells, and after it those that it waits for."""
    told = channel.Evidence(_last_collectives(), stacks.of_this_process())
    for theirs in filter(None, (other.evidence() for other in others)):
        # The main thread that counts comes last; what is no dump of stacks would be cut off there.
        both = [told.stacks, theirs.stacks] if stacks.main_thread(theirs.stacks) else [theirs.stacks, told.stacks]
        told = replace(
            told,
            collectives=told.collectives + theirs.collectives,
            stacks="\n".join(both),
            where=theirs.where or told.where,
        )
    return told


def _last_collectives() -> tuple[str, ...]:
    if "torch.distributed" not in sys.modules:
        return ()
    from hyper_parallel_tests.harness.judging import flight

    try:
        return tuple(flight.last_collectives(10, since_ns=started_ns))
    except Exception as error:
        return (f"the flight recorder cannot be read: {type(error).__name__}: {error}",)
