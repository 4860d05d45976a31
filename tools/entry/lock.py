"""One process at a time: a file lock that ends with its holder and the programs the holder started."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .report import say

_held: list[int] = []


@contextmanager
def only_one(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file, waiting with a message for `what` while another process does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            say(f"waiting for process {file.read().strip() or 'unknown'}, or what it started, to end {what}")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        _held.append(file.fileno())
        try:
            yield
        finally:
            _held.remove(file.fileno())


def held() -> tuple[int, ...]:
    """Descriptors to pass to child processes, so that these hold the lock on if this process is killed."""
    return tuple(_held)
