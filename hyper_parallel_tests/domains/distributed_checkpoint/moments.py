"""Moments in the middle of a save, at which a rank, the other ones or all of them are killed."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["MOMENTS", "SHARD_BYTES", "Change", "each_change", "kill_at"]

# More than any other file that a rank writes meanwhile, less than a shard.
SHARD_BYTES = 64 * 1024

Change = tuple[str, str, str]
"""What is done to a folder: "make", "write", "rename" or "delete", the path, and of a renaming the new path."""


def kill_at(moment: str, folder: Path, step: int, victims: list[int]) -> None:
    """From now on, has the process kill others, or itself, when a moment has come. There is no way back.

    Args:
        moment: of `MOMENTS`, or "in_a_shard", at which the kernel ends this process in a write.
        folder: in which it saves.
        step: that it will save.
        victims: process ids, this one's last if it is among them.
    """
    if moment == "in_a_shard":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (SHARD_BYTES, SHARD_BYTES))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        return
    has_come, seen = MOMENTS[moment], []

    def kill(change: Change) -> None:
        if has_come(change, seen, f"step-{step}"):
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            if victims[-1] == os.getpid():
                signal.pause()
        seen.append(change)

    each_change(folder, kill)


def each_change(folder: Path, told: Callable[[Change], object]) -> None:
    """From now on, tells of each change that this process is about to make in a folder. There is no way back."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        change = _change(event, args)
        if change is not None and any(Path(path).is_relative_to(folder) for path in change[1:] if path):
            told(change)

    sys.addaudithook(hook)


def _change(event: str, args: tuple[Any, ...]) -> Change | None:
    """What an audit event of Python is going to do to files, None for nothing."""
    if event == "open" and not isinstance(args[0], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
        return "write", os.fsdecode(args[0]), ""
    if event == "os.mkdir":
        return "make", os.fsdecode(args[0]), ""
    if event == "os.rename":
        return "rename", os.fsdecode(args[0]), os.fsdecode(args[1])
    if event in {"os.remove", "os.rmdir", "shutil.rmtree"}:
        return "delete", os.fsdecode(args[0]), ""
    return None


def _ends(change: Change, kind: str, name: str) -> bool:
    """Whether it is a change of this kind that ends at, or is about, a path with this name."""
    return change[0] == kind and (change[2] or change[1]).endswith(f"/{name}")


MOMENTS: dict[str, Callable[[Change, list[Change], str], bool]] = {
    "before_any_file": lambda now, seen, step: now[0] == "write" and not now[1].endswith("/.writer"),
    "before_metadata": lambda now, seen, step: now[0] == "write" and ".metadata" in now[1],
    "behind_metadata": lambda now, seen, step: any(_ends(one, "rename", ".metadata") for one in seen),
    "before_commit": lambda now, seen, step: _ends(now, "rename", step),
    "behind_commit": lambda now, seen, step: any(_ends(one, "rename", step) for one in seen),
    "in_a_deletion": lambda now, seen, step: (
        now[0] == "delete" and any(_ends(one, "rename", step) for one in seen) and seen[-1][0] == "delete"
    ),
}
"""Moment -> whether it has come, by what is about to be done, what has been done, and the name of the step's folder."""
