"""Dry run: HyperParallel's newer versions have one inside their trainer, for its own models."""

from __future__ import annotations

from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["dry_run", "format_estimates"]

_REASON = Unsupported(
    "the library's dry run, where a version has one, is its trainer's: it takes a configuration and builds the model"
)
dry_run = _REASON
format_estimates = _REASON
