"""Python stacks as faulthandler writes them, cut to what a reader of a report needs."""

from __future__ import annotations

import re
import signal
import sys
import threading
import traceback

# Has faulthandler write the stacks of a process, also where it runs no Python code any more.
SIGNAL = signal.SIGUSR2

# The frames that carry a case or a baseline: what lies below them is the same in every report.
_CARRIERS = re.compile(
    r'File ".*(/_pytest/python\.py|/_pytest/fixtures\.py|/_pytest/runner\.py|/harness/rank\.py)"'
    r'|File ".*/harness/judging/clean\.py", line \d+ in answer'
)
_OWN_THREAD = "in answer_probes"
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


def of_another(dump: str, name: str) -> str:
    """A dump of another process that tells whose threads they are."""
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
