"""Automatic parallelism: HyperParallel's is a tool that reads configurations of training frameworks."""

from __future__ import annotations

from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["estimate_plan", "search_plans"]

_REASON = Unsupported(
    "the library searches plans in a tool beside it, which reads the configuration of a training framework and "
    "profiles of real runs"
)
estimate_plan = _REASON
search_plans = _REASON
