"""The search: all degrees that multiply to the world, one after the other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hyper_parallel_tests.engines.port.auto_parallel import Workload
from hyper_parallel_tests.engines.torch_native.auto_parallel.costs import (
    DIMENSIONS,
    Plan,
    check_names,
    complete,
    estimate_plan,
    obstacle,
)

__all__ = ["candidates", "order", "search_plans"]


def search_plans(
    workload: Workload,
    world_size: int,
    *,
    memory_limit: int,
    degrees: Sequence[str] = DIMENSIONS,
    fixed: Mapping[str, int] | None = None,
    top_k: int | None = None,
) -> list[Plan]:
    """See the port."""
    for what, number in (("world_size", world_size), ("memory_limit", memory_limit), ("top_k", top_k)):
        if number is not None and number < 1:
            raise ValueError(f"{what} is {number}: expected a positive number")
    check_names(tuple(degrees))
    given = complete(fixed or {})
    if world_size % math.prod(given.values()):
        shown = ", ".join(f"{name}={degree}" for name, degree in (fixed or {}).items())
        raise ValueError(f"the fixed degrees {shown} do not divide a world of {world_size}")
    runnable = [one for one in candidates(world_size, degrees, fixed or {}) if not obstacle(workload, one)]
    if not runnable:
        raise ValueError(f"no degrees {', '.join(degrees)} of a world of {world_size} can run this model and batch")
    plans = sorted((estimate_plan(workload, one) for one in runnable), key=order)
    fitting = [one for one in plans if one.memory <= memory_limit]
    if not fitting:
        least = min(one.memory for one in plans)
        raise ValueError(f"no plan fits {memory_limit} bytes a card: the least that would do is {least}")
    return fitting[:top_k]


def candidates(world_size: int, degrees: Sequence[str], fixed: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Degrees that multiply to the world."""
    divisors = [one for one in range(1, world_size + 1) if world_size % one == 0]
    choices = [[fixed[name]] if name in fixed else divisors if name in degrees else [1] for name in DIMENSIONS]
    for chosen in itertools.product(*choices):
        if math.prod(chosen) == world_size:
            yield dict(zip(DIMENSIONS, chosen, strict=True))


def order(plan: Plan) -> tuple[Any, ...]:
    """What plans are sorted by."""
    return plan.time, plan.memory, *(plan.degrees[name] for name in ("pp", "tp", "fsdp"))
