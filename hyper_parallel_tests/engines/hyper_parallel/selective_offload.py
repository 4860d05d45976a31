"""Selective offload: HyperParallel's swapping of optimizer state, which newer versions have."""

from __future__ import annotations

from hyper_parallel_tests.engines.hyper_parallel.library import offered
from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["SwapOptimizerConfig", "selective_offload", "swap_optimizer"]

_REASON = "this version of the library does not offload optimizer state"

SwapOptimizerConfig = offered("hyper_parallel.core.optimizer:SwapOptimizerConfig", reason=_REASON)
swap_optimizer = offered("hyper_parallel.core.optimizer:swap_optimizer", reason=_REASON)
selective_offload = Unsupported("the library offloads neither parameters nor gradients")
