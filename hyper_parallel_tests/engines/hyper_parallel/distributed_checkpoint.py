"""Distributed checkpoints: HyperParallel's saves, loads and planners."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.engines.hyper_parallel.library import offered, refuse
from hyper_parallel_tests.engines.port import Unsupported
from hyper_parallel_tests.engines.port.distributed_checkpoint import PlannedRead, PlannedWrite
from hyper_parallel_tests.engines.shared.simulation import simulated_world

__all__ = [
    "CheckpointException",
    "StandardLoadPlanner",
    "StandardSavePlanner",
    "async_save",
    "load",
    "planned_reads",
    "planned_writes",
    "read_checkpoint_metadata",
    "save",
    "save_plan_cache_cleared",
    "write_checkpoint_metadata",
]

_REASON = "this version of the library has no distributed checkpoints"
_METADATA = ".metadata"


def _member(name: str, reason: str = _REASON) -> Any:
    packages = ("core.distributed_checkpoint", "core.checkpoint")
    return offered(*(f"hyper_parallel.{package}:{name}" for package in packages), reason=reason)


# The library lets through whatever a rank runs into.
CheckpointException = Exception
_save, _load = _member("save"), _member("load")
async_save = _member("async_save", "this version of the library saves while the program waits")
StandardLoadPlanner = _member("StandardLoadPlanner")
save_plan_cache_cleared = Unsupported("this version of the library keeps no plans")
_reader = _member("FileSystemReader")
_save_planner = _member("StandardSavePlanner")


def save(state_dict: dict[str, Any], *, checkpoint_id: Path | str, planner: Any = None) -> Any:
    """See the port. The library leaves it to its user to wait until the last rank has written the metadata."""
    with _a_group():
        metadata = _save(state_dict, checkpoint_id=checkpoint_id, planner=planner)
        dist.barrier()
    return metadata


def load(state_dict: dict[str, Any], *, checkpoint_id: Path | str, planner: Any = None) -> None:
    """See the port."""
    with _a_group():
        _load(state_dict, checkpoint_id=checkpoint_id, planner=planner)


def _a_group() -> AbstractContextManager[None]:
    """The library asks for its rank even where one process saves alone."""
    return nullcontext() if dist.is_initialized() else simulated_world(0, 1)


def StandardSavePlanner(*, enable_plan_caching: bool = False) -> Any:
    """See the port. Configured by hand, it divides replicas as it does for ``save``."""
    options = {"enable_plan_caching": enable_plan_caching} if enable_plan_caching else {}
    if options.keys() - inspect.signature(_save_planner).parameters.keys():
        refuse("StandardSavePlanner", "this version of the library keeps no plans")
    planner = _save_planner(**options)
    configure = planner.configure_planner

    def configure_planner(state_dict: dict[str, Any], **given: Any) -> None:
        configure(state_dict, **{"remove_redundancy": True, "save_to_minimum_rank": False} | given)

    planner.configure_planner = configure_planner
    return planner


def planned_writes(plan: Any) -> Sequence[PlannedWrite]:
    """See the port."""
    return [_write(item.index.fqn, item.tensor_data) for item in plan.items]


def _write(key: str, tensor: Any) -> PlannedWrite:
    if tensor is None:
        return PlannedWrite(key, None, None)
    chunk = tensor["chunk"]
    return PlannedWrite(key, tuple(chunk.offsets), tuple(chunk.sizes))


def planned_reads(plan: Any) -> Sequence[PlannedRead]:
    """See the port."""
    return [
        PlannedRead(
            item.dest_index.fqn,
            tuple(item.storage_index.offset) if item.type.name == "TENSOR" else None,
            tuple(item.storage_offsets),
            tuple(item.dest_offsets),
            tuple(item.lengths),
        )
        for item in plan.items
    ]


def read_checkpoint_metadata(checkpoint_id: Path | str) -> Any:
    """See the port."""
    return _reader(checkpoint_id).load_metadata()


def write_checkpoint_metadata(metadata: Any, checkpoint_id: Path | str) -> None:
    """See the port."""
    (Path(checkpoint_id) / _METADATA).write_bytes(pickle.dumps(metadata))


if isinstance(_save, Unsupported):
    save = load = CheckpointException = StandardSavePlanner = planned_writes = planned_reads = Unsupported(_REASON)
    read_checkpoint_metadata = write_checkpoint_metadata = Unsupported(_REASON)
