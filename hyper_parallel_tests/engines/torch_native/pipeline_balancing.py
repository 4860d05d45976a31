"""Pipeline balancing of torch_native: exact, by dynamic programming over the boundaries of stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hyper_parallel_tests.engines.port.pipeline_balancing import LayerCost

__all__ = ["balance_pipeline", "micro_batches_in_flight"]

# (stage, first layer, one behind its last) -> what it costs; infinite if it may not be.
_Cost = Callable[[int, int, int], float]


@dataclass(frozen=True)
class Balance:
    """See the port."""

    stages: tuple[range, ...]
    times: tuple[float, ...]
    memory: tuple[int, ...]
    step_time: float


def balance_pipeline(
    layers: Sequence[LayerCost],
    num_stages: int,
    *,
    micro_batches: int = 1,
    memory_limit: int | Sequence[int] | None = None,
) -> Balance:
    """See the port."""
    _check_layers(layers, num_stages, micro_batches)
    limits = _limits(memory_limit, num_stages)
    held = micro_batches_in_flight(num_stages, micro_batches)

    def memory(stage: int, first: int, end: int) -> int:
        return memory_of(layers[first:end], held[stage])

    def time(stage: int, first: int, end: int) -> float:
        fits = limits is None or memory(stage, first, end) <= limits[stage]
        return math.fsum(one.time for one in layers[first:end]) if fits else math.inf

    stages = lightest_cut(time, len(layers), num_stages)
    if stages is None:
        raise ValueError(_infeasible(memory, memory_limit, len(layers), num_stages))
    ends = [(stage, one.start, one.stop) for stage, one in enumerate(stages)]
    times = tuple(time(*one) for one in ends)
    return Balance(stages, times, tuple(memory(*one) for one in ends), step_time(times, micro_batches))


def micro_batches_in_flight(num_stages: int, micro_batches: int) -> tuple[int, ...]:
    """See the port."""
    return tuple(min(num_stages - stage, micro_batches) for stage in range(num_stages))


def memory_of(layers: Sequence[LayerCost], in_flight: int) -> int:
    """Bytes of a stage."""
    return sum(one.parameter_memory + in_flight * one.activation_memory for one in layers)


def step_time(times: Sequence[float], micro_batches: int) -> float:
    """See the port."""
    return math.fsum([*times, (micro_batches - 1) * max(times)])


def lightest_cut(cost: _Cost, layers: int, stages: int) -> tuple[range, ...] | None:
    """The cut whose costliest stage costs least, the first stages as short as can be; None if there is none."""
    # rest[s][i]: the least costliest stage when the stages from s on have the layers from i on.
    rest = [[math.inf] * (layers + 1) for _ in range(stages + 1)]
    rest[stages][layers] = -math.inf
    for stage in reversed(range(stages)):
        for first in range(layers):
            rest[stage][first] = min(
                max(cost(stage, first, end), rest[stage + 1][end]) for end in range(first + 1, layers + 1)
            )
    least, cut, first = rest[0][0], [], 0
    if least == math.inf:
        return None
    for stage in range(stages):
        behind = range(first + 1, layers + 1)
        end = next(one for one in behind if max(cost(stage, first, one), rest[stage + 1][one]) <= least)
        cut.append(range(first, end))
        first = end
    return tuple(cut)


def _infeasible(memory: _Cost, limit: int | Sequence[int] | None, layers: int, stages: int) -> str:
    what = f"no cut of {layers} layers into {stages} stages fits"
    if not isinstance(limit, int):
        return f"{what} the limits of {', '.join(map(str, limit or ()))} bytes: raise them, or take more stages"
    cut = lightest_cut(memory, layers, stages) or ()
    least = max(memory(stage, one.start, one.stop) for stage, one in enumerate(cut))
    return f"{what} {limit} bytes a stage: the least that would do is {least}"


def _check_layers(layers: Sequence[LayerCost], num_stages: int, micro_batches: int) -> None:
    if not layers:
        raise ValueError("no layers: there is nothing to cut into stages")
    if not 1 <= num_stages <= len(layers):
        raise ValueError(f"{num_stages} stages for {len(layers)} layers: expected 1 to {len(layers)}, a layer a stage")
    if micro_batches < 1:
        raise ValueError(f"{micro_batches} micro-batches: expected at least 1")
    for place, one in enumerate(layers):
        if not (math.isfinite(one.time) and one.time >= 0):
            raise ValueError(f"layer {place} has time {one.time}: expected a finite number, 0 or more")
        for kind in ("parameter_memory", "activation_memory"):
            if getattr(one, kind) < 0:
                raise ValueError(f"layer {place} has {kind} {getattr(one, kind)}: expected 0 bytes or more")


def _limits(memory_limit: int | Sequence[int] | None, num_stages: int) -> list[int] | None:
    if memory_limit is None:
        return None
    limits = [memory_limit] * num_stages if isinstance(memory_limit, int) else list(memory_limit)
    if len(limits) != num_stages:
        raise ValueError(f"{len(limits)} memory limits for {num_stages} stages: give one for all, or one a stage")
    for one in limits:
        if one <= 0:
            raise ValueError(f"a memory limit of {one} bytes: expected a positive number, or None for no limit")
    return limits
