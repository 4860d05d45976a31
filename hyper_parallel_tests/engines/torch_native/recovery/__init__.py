"""Recovery of torch_native: PyTorch's elastic agent, and plain references for what PyTorch has not.

PyTorch starts dead ranks anew. What a run leaves behind when it has to end, and whether replicas still hold the same
bits, it leaves to its users.
"""

from __future__ import annotations

from hyper_parallel_tests.engines.torch_native.recovery.elastic import elastic_run
from hyper_parallel_tests.engines.torch_native.recovery.last_words import LastWords
from hyper_parallel_tests.engines.torch_native.recovery.replicas import diverged_gradients

__all__ = ["LastWords", "diverged_gradients", "elastic_run"]
