"""All plans there are, tried one by one: what a search is judged by. It shares nothing with an engine."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.engines.port.auto_parallel import Workload

__all__ = ["NAMES", "all_degrees", "best_first", "can_run", "shown"]

NAMES = ("pp", "dp", "fsdp", "tp")


def all_degrees(world_size: int) -> list[dict[str, int]]:
    """Every way to multiply to the world."""
    numbers = range(1, world_size + 1)
    return [
        {"pp": pp, "dp": dp, "fsdp": fsdp, "tp": tp}
        for tp in numbers
        for fsdp in numbers
        if world_size % (tp * fsdp) == 0
        for dp in numbers
        for pp in numbers
        if pp * dp * fsdp * tp == world_size
    ]


def can_run(workload: Workload, degrees: dict[str, int]) -> bool:
    """Whether model and batch can be divided so."""
    shape, tp, pp = workload.shape, degrees["tp"], degrees["pp"]
    if any(number % tp for number in (shape.heads, shape.kv_heads, shape.ffn, shape.vocab)):
        return False
    if pp > shape.layers or (shape.tied and pp > 1):
        return False
    groups = degrees["dp"] * degrees["fsdp"] * (workload.micro_batches if pp > 1 else 1)
    return workload.rows % groups == 0


def best_first(engine: Any, workload: Workload, world_size: int, memory_limit: int) -> list[Any]:
    """Those that can run and fit, by the engine's own cost model and the order that the port tells."""
    plans = [engine.estimate_plan(workload, one) for one in all_degrees(world_size) if can_run(workload, one)]
    fitting = [one for one in plans if one.memory <= memory_limit]
    for name in ("fsdp", "tp", "pp"):
        fitting.sort(key=lambda one, name=name: one.degrees[name])
    fitting.sort(key=lambda one: one.memory)
    fitting.sort(key=lambda one: one.time)
    return fitting


def shown(plan: Any) -> str:
    """A plan's degrees, as in "pp1 dp2 fsdp1 tp4"."""
    return " ".join(f"{name}{plan.degrees[name]}" for name in NAMES)
