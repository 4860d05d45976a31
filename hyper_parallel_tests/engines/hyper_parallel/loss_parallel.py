"""Loss parallelism: HyperParallel's, which newer versions have."""

from __future__ import annotations

from hyper_parallel_tests.engines.hyper_parallel.library import offered

__all__ = ["loss_parallel"]

loss_parallel = offered(
    "hyper_parallel:loss_parallel",
    "hyper_parallel.core.tensor_parallel:loss_parallel",
    "hyper_parallel.core.tensor_parallel.loss_parallel:loss_parallel",
    reason="this version of the library has no loss of divided logits",
)
