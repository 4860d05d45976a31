"""Recovery: HyperParallel names it among what is to come."""

from __future__ import annotations

from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["LastWords", "diverged_gradients", "elastic_run"]

LastWords = Unsupported("fault recovery is on the library's list of what is to come")
diverged_gradients = Unsupported("detection of silent data corruption is on the library's list of what is to come")
elastic_run = Unsupported("fast recovery of processes is on the library's list of what is to come")
