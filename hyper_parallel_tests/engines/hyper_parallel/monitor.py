"""Precision monitor: HyperParallel names it in its features and offers no call for it."""

from __future__ import annotations

from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["TrainingStateMonitor", "format_record"]

_REASON = Unsupported("the library has no monitor of norms and losses that can be called by itself")
TrainingStateMonitor = _REASON
format_record = _REASON
