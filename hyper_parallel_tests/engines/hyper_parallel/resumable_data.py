"""Resumable data: the library reads rows through torchdata's loader, and has none of its own."""

from __future__ import annotations

from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["StatefulDataLoader"]

StatefulDataLoader = Unsupported("the library leaves the place in the data to the loader that its user gives it")
