"""Optimizers of torch_native: PyTorch's AdamW, its Muon with whole matrices, and a chain of them by names."""

from __future__ import annotations

from hyper_parallel_tests.engines.torch_native.optimizer.adamw import AdamW
from hyper_parallel_tests.engines.torch_native.optimizer.chain import ChainedOptimizer
from hyper_parallel_tests.engines.torch_native.optimizer.grouping import get_hyper_optimizer
from hyper_parallel_tests.engines.torch_native.optimizer.muon import Muon

__all__ = ["AdamW", "ChainedOptimizer", "Muon", "get_hyper_optimizer"]
