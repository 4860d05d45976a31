"""Checkpoint manager of torch_native: a reference on ``torch.distributed.checkpoint``.

PyTorch writes and reads one checkpoint. Which of several are whole, which to load and which to delete, and whether the
bytes are still those that were written, it leaves to its users.
"""

from __future__ import annotations

from hyper_parallel_tests.engines.torch_native.checkpoint_manager.agreement import CheckpointError
from hyper_parallel_tests.engines.torch_native.checkpoint_manager.manager import CheckpointManager
from hyper_parallel_tests.engines.torch_native.checkpoint_manager.manifest import verify_checkpoint

__all__ = ["CheckpointError", "CheckpointManager", "verify_checkpoint"]
