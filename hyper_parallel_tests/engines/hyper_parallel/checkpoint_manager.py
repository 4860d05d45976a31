"""Checkpoint manager: the library writes and reads one checkpoint, and manages none."""

from __future__ import annotations

from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["CheckpointError", "CheckpointManager", "verify_checkpoint"]

_REASON = Unsupported("the library has no manager of checkpoints: its users choose folders, and keep and delete them")

CheckpointError = _REASON
CheckpointManager = _REASON
verify_checkpoint = Unsupported("the library keeps no sums of what it has written")
