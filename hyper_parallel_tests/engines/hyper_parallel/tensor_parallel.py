"""Tensor parallelism by styles: HyperParallel's, which newer versions have."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.engines.hyper_parallel.library import offered

__all__ = ["ColwiseParallel", "RowwiseParallel", "parallelize_module"]


def _member(name: str) -> Any:
    return offered(
        f"hyper_parallel:{name}",
        f"hyper_parallel.core.tensor_parallel:{name}",
        reason="this version of the library has no parallel styles, it divides layers by shard_module",
    )


ColwiseParallel = _member("ColwiseParallel")
RowwiseParallel = _member("RowwiseParallel")
parallelize_module = _member("parallelize_module")
