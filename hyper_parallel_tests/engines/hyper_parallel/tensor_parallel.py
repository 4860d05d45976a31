"""Tensor parallelism by styles: HyperParallel's, which newer versions have."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.engines.hyper_parallel.library import offered
from hyper_parallel_tests.engines.port import Unsupported

__all__ = [
    "ColwiseParallel",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
    "attention_heads_per_rank",
    "parallelize_module",
]


def _member(name: str) -> Any:
    return offered(
        f"hyper_parallel:{name}",
        f"hyper_parallel.core.tensor_parallel:{name}",
        reason="this version of the library has no parallel styles, it divides layers by shard_module",
    )


ColwiseParallel = _member("ColwiseParallel")
PrepareModuleInput = _member("PrepareModuleInput")
PrepareModuleInputOutput = _member("PrepareModuleInputOutput")
PrepareModuleOutput = _member("PrepareModuleOutput")
RowwiseParallel = _member("RowwiseParallel")
SequenceParallel = _member("SequenceParallel")
attention_heads_per_rank = Unsupported("the library leaves the number of heads to its user")
parallelize_module = _member("parallelize_module")
