"""Context parallelism: HyperParallel's, which newer versions have."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.engines.hyper_parallel.library import offered, refuse
from hyper_parallel_tests.engines.port import Unsupported

__all__ = [
    "AsyncContextParallel",
    "ContextParallel",
    "context_parallel_attention",
    "context_parallel_indices",
    "context_parallel_layout",
    "context_parallel_shard",
    "context_parallel_unshard",
]

_LEFT_OUT = Unsupported("the library lays the attention's inputs out by hooks; the sequence is divided by its user")


def _style(name: str) -> Any:
    make = offered(
        f"hyper_parallel:{name}",
        f"hyper_parallel.core.context_parallel:{name}",
        reason="this version of the library has no context parallelism",
    )
    if isinstance(make, Unsupported):
        return make

    def style(*args: Any, query_kwargs: Any = None, key_kwargs: Any = None, **options: Any) -> Any:
        """See the port."""
        if query_kwargs or key_kwargs:
            refuse(name, "the library lays out q, k and v, and leaves positions and masks to its user")
        return make(*args, **options)

    return style


ContextParallel = _style("ContextParallel")
AsyncContextParallel = _style("AsyncContextParallel")
context_parallel_attention = _LEFT_OUT
context_parallel_indices = _LEFT_OUT
context_parallel_layout = _LEFT_OUT
context_parallel_shard = _LEFT_OUT
context_parallel_unshard = _LEFT_OUT
