"""Pipeline balancing: HyperParallel's is a tool with a solver and files of its own."""

from __future__ import annotations

from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["balance_pipeline", "micro_batches_in_flight"]

_REASON = Unsupported(
    "the library balances pipelines in a tool beside it, which reads the configuration of a training framework and "
    "needs a solver for integer programs"
)
balance_pipeline = _REASON
micro_batches_in_flight = _REASON
