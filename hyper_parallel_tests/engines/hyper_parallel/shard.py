"""Declarative sharding: HyperParallel's."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.engines.hyper_parallel.library import offered
from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["DFunction", "ShardingPlan", "custom_shard", "remove_sharding_plan", "shard_module"]


def _member(name: str, *places: str) -> Any:
    return offered(
        f"hyper_parallel:{name}",
        *(f"hyper_parallel.core.shard{place}:{name}" for place in ("", *places)),
        reason=f"this version of the library has no {name}",
    )


ShardingPlan = _member("ShardingPlan", ".sharding_plan")
shard_module = _member("shard_module", ".api")
custom_shard = _member("custom_shard", ".custom_shard", ".local_func")
DFunction = _member("DFunction", ".dfunction", ".custom_shard")
remove_sharding_plan = Unsupported("the library has no way to take a plan off a module")
