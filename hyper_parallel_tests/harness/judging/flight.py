"""The last collectives of this process, for the report of a rank that hangs or dies.

Reads the flight recorder that torch keeps by itself: nothing is wrapped, engines see what they always see.
The recorder of gloo holds collectives only; a pending send or recv is found on the Python stacks.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

__all__ = ["BUFFER_SIZE_VARIABLE", "last_collectives", "pending_collectives"]

BUFFER_SIZE_VARIABLE = "TORCH_FR_BUFFER_SIZE"
"""Entries that torch keeps (2000 unless set, 0 turns it off); read once, before the first process group."""

_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
_TORCH = os.path.dirname(torch.__file__) + os.sep


def last_collectives(limit: int = 8, *, since_ns: int = 0) -> list[str]:
    """The newest collectives of this process, oldest first, then calls into torch.distributed that still run.

    Safe to call from any thread while the others hang, also before, between and after process groups.
    `since_ns` (of `time.time_ns()`) leaves out what was issued earlier, for example by the cases before.
    A line reads `all_gather #4 of default_pg (0, 1): float32[4] -> float32[2, 4]: PENDING for 2.0 s`; the
    number counts the group's collectives, so ranks of a group can be compared. A collective that failed or
    timed out counts as done; one that has just ended may be pending for a moment more. Gloo builds
    reduce_scatter from all_reduce and it is named so.
    """
    entries = [entry for entry in _recorded() if entry["time_created_ns"] >= since_ns]
    entries.sort(key=lambda entry: entry["time_created_ns"])
    groups = _ranks_of_groups()
    lines = [_line(entry, groups) for entry in entries[-limit:]]
    return lines + list(_running_calls())


def pending_collectives() -> list[str]:
    """Those of this process that are not done, oldest first, as `last_collectives` writes them."""
    entries = sorted(_recorded(), key=lambda entry: entry["time_created_ns"])
    groups = _ranks_of_groups()
    return [_line(entry, groups) for entry in entries if not _is_done(entry)]


def _recorded() -> Iterator[dict[str, Any]]:
    """Entries of each recorder of this build: gloo's and, where there is one, NCCL's own."""
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(torch._C._distributed_c10d, name, None)
        if dump is not None:
            yield from json.loads(dump()).get("entries", [])


def _ranks_of_groups() -> dict[str, tuple[int, ...]]:
    """Global ranks by group name. gloo does not tell them to the recorder, but c10d's own table has them."""
    world = distributed_c10d._world
    return {name: tuple(world.pg_group_ranks.get(group, {})) for group, name in list(world.pg_names.items())}


def _line(entry: dict[str, Any], groups: dict[str, tuple[int, ...]]) -> str:
    name, description = entry["process_group"]
    operation = entry["profiling_name"].split(":")[-1]
    number = entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]
    group = description if description not in ("", "undefined") else f"group {name}"
    inputs = _tensors(entry["input_dtypes"], entry["input_sizes"])
    outputs = _tensors(entry["output_dtypes"], entry["output_sizes"])
    state = "done" if _is_done(entry) else f"PENDING for {(time.time_ns() - entry['time_created_ns']) / 1e9:.1f} s"
    return f"{operation} #{number} of {group} {groups.get(name, '(gone)')}: {inputs} -> {outputs}: {state}"


def _is_done(entry: dict[str, Any]) -> bool:
    return entry["retired"] or entry["state"] == "completed"


def _tensors(dtypes: list[str], sizes: list[list[int]]) -> str:
    shown = [f"{_DTYPES.get(dtype, dtype)}{size}" for dtype, size in zip(dtypes, sizes, strict=False)]
    return " ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "") or "nothing"


def _running_calls() -> Iterator[str]:
    """What each other thread does in torch.distributed: the call it is in, or the wait() it stands at."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in list(sys._current_frames().items()):
        if ident == threading.get_ident():
            continue
        call = _outermost_call(frame)
        user = _first_outside_torch(call or frame)
        file, number = (user.f_code.co_filename, user.f_lineno) if user else ("?", 0)
        line = linecache.getline(file, number).strip()
        where = f"at {os.path.basename(file)}:{number}: {line}"
        if call is not None:
            yield f"{names.get(ident, ident)} is inside {call.f_code.co_name}({_arguments(call)}) {where}"
        elif user is frame and ".wait(" in line:
            yield f"{names.get(ident, ident)} waits {where}"


def _outermost_call(frame: FrameType | None) -> FrameType | None:
    """The public torch.distributed function nearest to the innermost frame, as the user called it."""
    found = None
    while frame is not None:
        ours = frame.f_code.co_filename == distributed_c10d.__file__
        if found is not None and not ours and not _is_plumbing(frame):
            break
        if ours and not frame.f_code.co_name.startswith("_"):
            found = frame
        frame = frame.f_back
    return found


def _first_outside_torch(frame: FrameType | None) -> FrameType | None:
    while frame is not None and _is_plumbing(frame):
        frame = frame.f_back
    return frame


def _is_plumbing(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_TORCH) or name.endswith(("typing_extensions.py", "contextlib.py"))


def _arguments(frame: FrameType) -> str:
    """Arguments as the user passed them: shapes for tensors, ranks for groups, nothing for None and False."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = [(name, frame.f_locals.get(name)) for name in names]
    shown = [(name, value) for name, value in values if value is not None and value is not False]
    return ", ".join(f"{name}={_short(value)}" for name, value in shown)


def _short(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, dist.ProcessGroup):
        return f"ranks {tuple(distributed_c10d._world.pg_group_ranks.get(value, {}))}"
    if isinstance(value, list) and len(value) > 4:
        return f"[{_short(value[0])}, ... {len(value)} in all]"
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    return repr(value)[:60]
