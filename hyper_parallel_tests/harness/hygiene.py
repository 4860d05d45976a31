"""What a case must leave as it found it, so that it cannot poison its neighbours."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from hyper_parallel_tests.harness import processes

# A thread or a child process that is on its way out gets this long; one that stays is a leak.
_JOIN_S = 1.0

# Processes that torch and multiprocessing start once per process and that end with it.
_SERVERS = ("torch_shm_manager", "multiprocessing.forkserver import", "multiprocessing.resource_tracker import")

# Each process group of gloo holds threads and sockets until its process ends.
MAX_GROUPS = 48


@dataclass(frozen=True)
class Snapshot:
    """The state of a rank between cases."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    environment: dict[bytes, bytes]
    directory: str
    streams: tuple[tuple[int, int] | None, ...]
    torch: dict[str, Any]
    group: int | None

    @classmethod
    def take(cls) -> Snapshot:
        return cls(
            threads=frozenset(threading.enumerate()),
            children=frozenset(processes.children(os.getpid())),
            environment=_environment(),
            directory=_directory(),
            streams=_streams(),
            torch=_torch_state(),
            group=_default_group(),
        )

    def leaks(self, own_process_group: bool) -> list[str]:
        """What a case that ran since `take` left behind, one sentence each; empty when it left nothing."""
        found = [*self._leaked_threads(), *self._leaked_children(), *self._closed_streams()]
        after = _torch_state()
        found += [
            f"left {name} as {after[name]} (it was {before})"
            for name, before in self.torch.items()
            if after.get(name) != before
        ]
        found += self._environment_changes()
        if signal.getitimer(signal.ITIMER_REAL)[0]:
            found.append("left an alarm running, whose signal would end the rank in another case")
        if (directory := _directory()) != self.directory:
            found.append(f"left the working directory at {directory}")
        if _default_group() != self.group and not own_process_group:
            what = "destroyed" if _default_group() is None else "replaced"
            found.append(
                f"left the default process group {what}; a case that means to carries @pytest.mark.own_process_group"
            )
        return found

    def _leaked_threads(self) -> list[str]:
        end = time.monotonic() + _JOIN_S
        found = []
        for thread in threading.enumerate():
            if thread in self.threads:
                continue
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                found.append(f"left thread {thread.name!r} running")
        return found

    def _leaked_children(self) -> list[str]:
        end = time.monotonic() + _JOIN_S
        while running := self._new_children():
            if time.monotonic() > end:
                break
            time.sleep(0.01)
        return [f"left child process {pid} running: {command}" for pid, command in running.items()]

    def _new_children(self) -> dict[int, str]:
        new = [pid for pid in processes.children(os.getpid()) if pid not in self.children and processes.is_running(pid)]
        commands = {pid: processes.command_of(pid) for pid in new}
        return {pid: line for pid, line in commands.items() if not any(server in line for server in _SERVERS)}

    def _closed_streams(self) -> list[str]:
        """Descriptors 1 and 2 reach the rank's log; whatever is opened next would take the place of a closed one."""
        names = ("standard output", "standard error")
        return [
            f"left {name} closed or redirected"
            for name, before, now in zip(names, self.streams, _streams(), strict=True)
            if before != now
        ]

    def _environment_changes(self) -> list[str]:
        now = _environment()
        changed = sorted(
            os.fsdecode(name)
            for name in now.keys() | self.environment.keys()
            if now.get(name) != self.environment.get(name)
        )
        return [f"left environment variables changed: {', '.join(changed)}"] if changed else []


def _directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "a folder that is gone"


def _environment() -> dict[bytes, bytes]:
    """The environment without pytest's own entry; not decoded, since each case asks for it twice."""
    return {name: value for name, value in os.environb.items() if name != b"PYTEST_CURRENT_TEST"}


def _streams() -> tuple[tuple[int, int] | None, ...]:
    """What descriptors 1 and 2 are open on, None for a closed one."""
    found: list[tuple[int, int] | None] = []
    for descriptor in (1, 2):
        try:
            status = os.fstat(descriptor)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return tuple(found)


def _torch_state() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "torch's gradient mode": torch.is_grad_enabled(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "torch's thread count": torch.get_num_threads(),
        "torch's CPU autocast": torch.is_autocast_enabled("cpu"),
    }


def _default_group() -> int | None:
    """Identity of the default process group, None where there is none."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_initialized():
        return None
    return id(dist.group.WORLD)


def group_count() -> int:
    """How many process groups this rank holds."""
    dist = sys.modules.get("torch.distributed")
    return len(dist.distributed_c10d._world.pg_map) if dist is not None else 0
