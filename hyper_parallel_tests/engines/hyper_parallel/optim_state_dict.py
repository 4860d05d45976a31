"""Optimizer state dicts: HyperParallel's, which newer versions have."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.engines.hyper_parallel.library import offered

__all__ = ["get_optim_state_dict", "set_optim_state_dict"]


def _member(name: str) -> Any:
    return offered(
        f"hyper_parallel:{name}",
        f"hyper_parallel.core.fully_shard.api:{name}",
        f"hyper_parallel.core.distributed_checkpoint:{name}",
        reason="in this version of the library a rank has the optimizer's own state dict of its part alone",
    )


get_optim_state_dict = _member("get_optim_state_dict")
set_optim_state_dict = _member("set_optim_state_dict")
