"""Python stacks as faulthandler writes them, cut to what a reader of a report needs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from hyper_parallel_tests.harness import processes

# Has faulthandler write the stacks of a process, also where it runs no Python code any more.
SIGNAL = signal.SIGUSR2

# The frames that carry a case or a baseline: what lies below them is the same in every report.
_CARRIERS = re.compile(
    r'File ".*(/_pytest/python\.py|/_pytest/fixtures\.py|/_pytest/runner\.py|/harness/(rank|job_rank)\.py)"'
    r'|File ".*/harness/judging/clean\.py", line \d+ in answer'
)
_OWN_THREAD = "in answer_probes"
_LOOK_AGAIN_S = 0.02
_HEADER = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*most recent call first", re.MULTILINE)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')


def readable(raw: str) -> str:
    """A dump of all threads without the harness' own thread and without the frames that carry every case."""
    starts = [match.start() for match in _HEADER.finditer(raw)]
    if not starts:
        return raw.strip()
    blocks = [raw[start:end] for start, end in zip(starts, [*starts[1:], len(raw)], strict=True)]
    kept = [_cut(block) for block in blocks if _OWN_THREAD not in block]
    return "\n".join([raw[: starts[0]].strip(), *kept]).strip()


def of_this_process() -> str:
    """The stacks of all threads but the calling one, as faulthandler writes them, the main thread last.

    It takes the interpreter's lock, so that it is safe beside threads that run, which faulthandler's signal is not.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    main = threading.main_thread().ident
    blocks = []
    for ident in sorted(frames, key=lambda one: one == main):
        lines = [f"Thread 0x{ident:016x} [{names.get(ident, 'unknown')}] (most recent call first):"]
        for frame, number in traceback.walk_stack(frames[ident]):
            lines.append(f'  File "{frame.f_code.co_filename}", line {number} in {frame.f_code.co_name}')
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


K = TypeVar("K")


def by_signal(asked: Mapping[K, tuple[int, Path]], limit_s: float) -> dict[K, str]:
    """The stacks that processes write when faulthandler's signal asks them to.

    Args:
        asked: process id, and the file that its faulthandler writes to.
        limit_s: seconds after which no answer is one.
    """
    begins = {key: size_of(path) for key, (_, path) in asked.items()}
    for pid, _ in asked.values():
        with contextlib.suppress(OSError):
            os.kill(pid, SIGNAL)
    end = time.monotonic() + limit_s
    sizes: dict[K, int] = {}
    while asked and time.monotonic() < end:
        # They stand complete once they grow no more.
        seen, sizes = sizes, {key: size_of(path) for key, (_, path) in asked.items()}
        if sizes == seen and all(sizes[key] > begins[key] for key in asked):
            break
        time.sleep(_LOOK_AGAIN_S)
    return {key: _written(path, begins[key]) or _silent(pid) for key, (pid, path) in asked.items()}


def _written(path: Path, begin: int) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(begin)
        return file.read(2**20).decode(errors="replace")
    return ""


def _silent(pid: int) -> str:
    return f"no Python stacks: the process is {processes.state_of(pid)}"


def size_of(path: Path) -> int:
    """Bytes in a file, 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def of_another(dump: str, name: str) -> str:
    """A dump of another process that tells whose threads they are; also what stands in the place of a dump."""
    if not _HEADER.search(dump):
        return f"{name}: {dump}"
    return _HEADER.sub(lambda found: found[0].replace("(most recent", f"of {name} (most recent"), dump)


def main_thread(stacks: str) -> list[str]:
    """The frames of the main thread, innermost first, as `file:line in function`; empty where there is none."""
    starts = [match.start() for match in _HEADER.finditer(stacks)]
    block = stacks[starts[-1] :] if starts else ""
    return [f"{frame['file']}:{frame['line']} in {frame['function']}" for frame in _FRAME.finditer(block)]


def _cut(block: str) -> str:
    """One thread's frames down to the first that carries a case; all of them where none does."""
    lines = block.rstrip().splitlines()
    carrier = next((number for number, line in enumerate(lines) if _CARRIERS.search(line)), len(lines))
    kept = lines[:carrier] if carrier > 1 else lines
    return "\n".join(line for line in kept if not line.startswith("Extension modules:")) + "\n"
