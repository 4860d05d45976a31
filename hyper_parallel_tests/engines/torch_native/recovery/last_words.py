"""The checkpoint that a run leaves behind when a signal or an exception ends it."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

__all__ = ["LastWords"]


class LastWords:
    """See the port."""

    def __init__(
        self,
        manager: Any,
        state: Callable[[], Mapping[str, Any]],
        *,
        signals: Sequence[int] = (signal.SIGTERM,),
        timeout: float = 30,
    ) -> None:
        self.saved: int | None = None
        self._manager, self._state = manager, state
        self._signals, self._timeout = tuple(signals), timeout
        self._before: dict[int, Any] = {}
        self._asked = False
        # Of the last two steps: when a rank fails in a step, others may have completed it, and none the next one.
        self._copies: dict[int, dict[str, Any]] = {}

    def __enter__(self) -> LastWords:
        try:
            for number in self._signals:
                self._before[number] = signal.signal(number, self._hear)
        except BaseException:
            self._give_back()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception):
                error.add_note(self._speak())
        finally:
            self._give_back()

    def completed(self, step: int) -> bool:
        """See the port."""
        newest = max(self._copies, default=None)
        self._copies = {one: self._copies[one] for one in [newest] if one is not None}
        self._copies[step] = _copied(self._state())
        asked: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(asked, self._asked)
        if not any(asked):
            return False
        self._save(step)
        return True

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def _give_back(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            # None is a handler that is not Python's, which cannot be put back from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _save(self, step: int) -> None:
        if step not in self._manager.steps():
            self._manager.save(step, self._copies[step], force=True)
        self.saved = step

    def _speak(self) -> str:
        """Saves with all ranks after an exception; says what came of it."""
        try:
            self._meet_anew()
            newest: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(newest, max(self._copies, default=None))
            if None in newest:
                return f"last words: none, since rank {newest.index(None)} has completed no step"
            self._save(min(newest))
        except Exception as error:
            return f"last words: no checkpoint, since {type(error).__name__}: {error}"
        return f"last words: the checkpoint of step {self.saved} is complete"

    def _meet_anew(self) -> None:
        """Ends what peers wait for, and forms a process group of the same ranks, through the store that they share."""
        rank, size, store = dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store()
        _hang_up(_port(store))
        dist.destroy_process_group()
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("last_words", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=self._timeout),
        )


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """In host memory, where nobody changes it."""
    # One that is used again would write over what it has copied before.
    stager = DefaultStager(StagingOptions(False, False, False, False))
    try:
        return stager.stage(dict(state))
    finally:
        stager.close()


def _port(store: Any) -> int:
    """Of the TCP store behind prefixes."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store.port


def _hang_up(kept: int) -> None:
    """Shuts this process's connections, but for those on one port.

    Gloo has no abort: peers wait until connections end, and those live as long as whatever refers to a group.
    """
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                _shut(os.dup(descriptor), kept)


def _shut(descriptor: int, kept: int) -> None:
    with socket.socket(fileno=descriptor) as one:
        if one.family not in (socket.AF_INET, socket.AF_INET6):
            return
        if kept not in (one.getsockname()[1], one.getpeername()[1]):
            one.shutdown(socket.SHUT_RDWR)
