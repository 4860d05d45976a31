"""Automatic parallelism of torch_native: a small exact search, and the cost model of a decoder that it searches by."""

from __future__ import annotations

from hyper_parallel_tests.engines.torch_native.auto_parallel.costs import estimate_plan
from hyper_parallel_tests.engines.torch_native.auto_parallel.search import search_plans

__all__ = ["estimate_plan", "search_plans"]
