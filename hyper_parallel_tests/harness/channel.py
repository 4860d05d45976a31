"""What the conductor and its ranks say to each other, and the line they say it on.

The line is a Unix socket in Linux' abstract namespace: no file to leave behind, no port to clash, gone with its
processes. A rank is known by the process id that the kernel vouches for.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

TEXT_LIMIT = 2**16


def bounded(text: str) -> str:
    """`text` with its middle left out where it has more than `TEXT_LIMIT` characters: a report must stay readable."""
    if len(text) <= TEXT_LIMIT:
        return text
    half = TEXT_LIMIT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


@dataclass(frozen=True)
class CaseInfo:
    """One collected case as a rank sees it."""

    nodeid: str
    location: tuple[str, int | None, str]
    contracts: tuple[str, ...]
    watchdog: float | None
    own_process_group: bool
    doc: str
    collectives_only: bool = False


@dataclass(frozen=True)
class Collected:
    """A rank is up and has collected; `errors` holds what went wrong on the way."""

    cases: tuple[CaseInfo, ...]
    errors: tuple[str, ...]
    engine_version: str
    deselected: int = 0


@dataclass(frozen=True)
class NotStarted:
    """A rank's pytest session ended before it collected; its log says why."""

    exit_code: int


@dataclass(frozen=True)
class Phase:
    """The outcome of one phase (setup, call, teardown) of a case on one rank.

    `kind` is passed, skipped, not-offered, assertion, error or leak; `at` is the wall clock, which the ranks of a
    machine share.
    """

    when: str
    kind: str
    at: float
    duration: float
    summary: str = ""
    text: str = ""
    exception: str = ""


@dataclass(frozen=True)
class Done:
    """A rank has finished a case; `rebuild` says why its process must not run another one."""

    nodeid: str
    rebuild: str = ""
    collectives: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reached:
    """The fault took effect on a rank for the first time in this case."""

    fault: str


@dataclass(frozen=True)
class Evidence:
    """What a rank tells of itself while a case runs: its latest collectives, oldest first, and its Python stacks.

    `where` says in a line what it waits for, where that is another process.
    """

    collectives: tuple[str, ...]
    stacks: str
    where: str = ""


@dataclass(frozen=True)
class Run:
    """Order: run case number `index`; `following` is the next one of the plan, None for none."""

    index: int
    following: int | None


@dataclass(frozen=True)
class Finish:
    """Order: end the session and leave."""


@dataclass
class Listener:
    """The conductor's end: accepts ranks by their process ids."""

    address: str = field(default_factory=lambda: f"hyper_parallel_tests-{os.getpid()}-{os.urandom(8).hex()}")

    def __post_init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.bind("\0" + self.address)
        self.socket.listen(128)
        self.socket.setblocking(False)

    def accept(self) -> tuple[int, Connection] | None:
        """The next waiting peer as (process id, connection), None where nobody waits; strangers are turned away."""
        with contextlib.suppress(BlockingIOError):
            peer, _ = self.socket.accept()
            pid, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid == os.getuid():
                peer.setblocking(True)
                return pid, Connection(peer.detach())
            peer.close()
        return None

    def close(self) -> None:
        self.socket.close()


def connect(address: str) -> Connection:
    """A rank's end of the line."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect("\0" + address)
    return Connection(line.detach())
