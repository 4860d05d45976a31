"""Selective offload of torch_native: a reference that moves single tensors by the copies of activation swap."""

from __future__ import annotations

from hyper_parallel_tests.engines.torch_native.selective_offload.model import selective_offload
from hyper_parallel_tests.engines.torch_native.selective_offload.state import SwapOptimizerConfig, swap_optimizer

__all__ = ["SwapOptimizerConfig", "selective_offload", "swap_optimizer"]
