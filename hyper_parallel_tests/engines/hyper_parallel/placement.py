"""Placements: HyperParallel's."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.engines.hyper_parallel.library import offered

__all__ = ["Partial", "Replicate", "Shard", "StridedShard"]


def _member(name: str, reason: str = "this version of the library has no placements") -> Any:
    return offered(
        f"hyper_parallel.core.dtensor.placement_types:{name}",
        f"hyper_parallel.core.placement_types:{name}",
        reason=reason,
    )


Shard = _member("Shard")
StridedShard = _member("StridedShard", "this version of the library has no shard that divides after others")
Replicate = _member("Replicate")
Partial = _member("Partial")
