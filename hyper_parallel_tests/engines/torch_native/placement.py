"""Placements of torch_native: PyTorch's. Its strided shard is private, for it has no user but FSDP2 over TP."""

from __future__ import annotations

from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard as StridedShard

__all__ = ["Partial", "Replicate", "Shard", "StridedShard"]
