"""Context parallelism of torch_native: plain references, since PyTorch's own runs on accelerators alone."""

from hyper_parallel_tests.engines.torch_native.context_parallel.attention import context_parallel_attention
from hyper_parallel_tests.engines.torch_native.context_parallel.layout import context_parallel_layout
from hyper_parallel_tests.engines.torch_native.context_parallel.movement import context_parallel_unshard
from hyper_parallel_tests.engines.torch_native.context_parallel.split import (
    context_parallel_indices,
    context_parallel_shard,
)
from hyper_parallel_tests.engines.torch_native.context_parallel.styles import AsyncContextParallel, ContextParallel

__all__ = [
    "AsyncContextParallel",
    "ContextParallel",
    "context_parallel_attention",
    "context_parallel_indices",
    "context_parallel_layout",
    "context_parallel_shard",
    "context_parallel_unshard",
]
