"""Processes by their ids: who descends from us, how they ended, and that none is left.

Linux only, through /proc and prctl(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Send the calling process a signal as soon as its parent is gone."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, so that `descendants` keeps seeing them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children(pid: int) -> list[int]:
    """Live or dead-but-unreaped children of `pid`, all its threads' together; empty when it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found.extend(int(child) for child in (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, parents before their children."""
    found: list[int] = []
    todo = children(pid)
    while todo:
        one = todo.pop(0)
        found.append(one)
        todo.extend(children(one))
    return found


def is_running(pid: int) -> bool:
    """Whether `pid` exists and is not a zombie."""
    return _state(pid) not in {"Z", "X", ""}


def state_of(pid: int) -> str:
    """What the kernel says that `pid` does: running, sleeping, stopped (as by SIGSTOP), ..."""
    known = {
        "R": "running",
        "S": "sleeping",
        "D": "in an uninterruptible wait",
        "T": "stopped",
        "t": "traced",
        "Z": "dead",
    }
    return known.get(_state(pid), "gone")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def command_of(pid: int) -> str:
    """The command line of `pid` for a report, or a word that says why there is none."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "already gone"
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()[:200] or "no command line"


def kill(pids: list[int], grace_s: float = 5.0) -> list[int]:
    """SIGKILL each of `pids` and wait until they are gone; returns those still running after `grace_s` seconds."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + grace_s
    left = [pid for pid in pids if is_running(pid)]
    while left and time.monotonic() < end:
        time.sleep(0.01)
        left = [pid for pid in left if is_running(pid)]
    reap()
    return left


def drop_shared_memory(pid: int) -> None:
    """Give back the shared memory that torch made for `pid`, which outlives a process that was killed."""
    for segment in Path("/dev/shm").glob(f"torch_{pid}_*"):
        segment.unlink(missing_ok=True)


def reap() -> None:
    """Collect adopted orphans that ended; processes of multiprocessing are left to it."""
    import multiprocessing

    own = {child.pid for child in multiprocessing.process._children}
    for pid in children(os.getpid()):
        if pid not in own and not is_running(pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def exit_text(code: int | None) -> str:
    """How a process ended, for people: `killed by SIGSEGV`, `exited with code 3`."""
    if code is None:
        return "still running"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
