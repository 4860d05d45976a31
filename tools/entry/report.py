"""What the entry says on stderr, and how it stops."""

from __future__ import annotations

import sys
import time

OTHER_WAYS = "install bazelisk, or name a Bazel 7.x: BAZEL=/path/to/bazel"


class EntryError(Exception):
    """The entry cannot go on. The message tells what was expected, what was found and what to do."""


def say(message: str) -> None:
    """Print on stderr, each line marked as the entry's own."""
    for line in message.splitlines():
        print(f"tools/bazel: {line}", file=sys.stderr, flush=True)


class Progress:
    """Progress lines with the time since the start: what is done, and how much."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def step(self, what: str) -> None:
        """Print a line for a step that begins, or for how far the present one has come."""
        say(f"[{time.monotonic() - self._start:4.0f} s] {what}")
