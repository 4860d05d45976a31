"""Saves, at once or beside the program: PyTorch's, one at a time."""

from __future__ import annotations

from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint import Metadata, SavePlanner

from hyper_parallel_tests.engines.torch_native.distributed_checkpoint.planning import StandardSavePlanner
from hyper_parallel_tests.engines.torch_native.distributed_checkpoint.storage import Writer

_under_way: list[Future[Metadata]] = []
# Keyed by the default group, so that a new one gets new groups.
_groups: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


class AsyncSaveResponse:
    """See the port."""

    def __init__(self, future: Future[Metadata]) -> None:
        self._future = future

    def done(self) -> bool:
        """See the port."""
        return self._future.done()

    def get_result(self, timeout: float | None = None) -> Metadata:
        """See the port."""
        return self._future.result(timeout)


def save(state_dict: dict[str, Any], *, checkpoint_id: Path | str, planner: SavePlanner | None = None) -> Metadata:
    """See the port."""
    _finish_what_is_under_way()
    return checkpoint.save(state_dict, storage_writer=Writer(checkpoint_id), planner=planner or StandardSavePlanner())


def async_save(
    state_dict: dict[str, Any], *, checkpoint_id: Path | str, planner: SavePlanner | None = None
) -> AsyncSaveResponse:
    """See the port."""
    _finish_what_is_under_way()
    future = checkpoint.async_save(
        state_dict,
        # A writer given here would be PyTorch's stager too, and another one than it takes by itself.
        checkpoint_id=checkpoint_id,
        planner=planner or StandardSavePlanner(),
        process_group=_group_for_saves(),
    )
    _under_way.append(future)
    future.add_done_callback(_under_way.remove)
    return AsyncSaveResponse(future)


def _finish_what_is_under_way() -> None:
    """Its failure is for the one who asked for it, so nothing is raised here."""
    wait(tuple(_under_way))


def _group_for_saves() -> dist.ProcessGroup | None:
    """A group that the program does not use: two threads on one group would take each other's messages."""
    if not dist.is_initialized():
        return None
    world = dist.group.WORLD
    if world not in _groups:
        _groups[world] = dist.new_group(backend="gloo")
    return _groups[world]
