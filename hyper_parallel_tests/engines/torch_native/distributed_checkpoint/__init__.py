"""Distributed checkpoints of torch_native: ``torch.distributed.checkpoint``, and the checks that it leaves out.

Planning, reading and writing are PyTorch's. Added are the check of the format version, of dtypes and of what is a
tensor, and for asynchronous saves a group of their own and that one waits for the other.
"""

from __future__ import annotations

from torch.distributed.checkpoint import CheckpointException

from hyper_parallel_tests.engines.torch_native.distributed_checkpoint.planning import (
    StandardLoadPlanner,
    StandardSavePlanner,
    planned_reads,
    planned_writes,
    save_plan_cache_cleared,
)
from hyper_parallel_tests.engines.torch_native.distributed_checkpoint.saving import async_save, save
from hyper_parallel_tests.engines.torch_native.distributed_checkpoint.storage import (
    load,
    read_checkpoint_metadata,
    write_checkpoint_metadata,
)

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
