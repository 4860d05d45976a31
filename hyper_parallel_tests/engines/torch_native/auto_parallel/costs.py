"""The cost model: bytes of the fullest rank and seconds of a step, of given degrees."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from hyper_parallel_tests.engines.port.auto_parallel import Workload
from hyper_parallel_tests.engines.port.pipeline_balancing import LayerCost
from hyper_parallel_tests.engines.torch_native.auto_parallel.sizes import Part, block, embedding, head
from hyper_parallel_tests.engines.torch_native.pipeline_balancing import balance_pipeline

__all__ = ["DIMENSIONS", "Plan", "check_names", "estimate_plan", "obstacle"]

DIMENSIONS = ("pp", "dp", "fsdp", "tp")

_BYTES = 4
# Parameter, gradient, two states of Adam.
_COPIES = 4
# Of backward and forward over forward alone.
_PASSES = 3

# Elements are counted exactly; what an engine may hold besides, such as a gradient left whole, is within this.
MEMORY_ERROR = 0.05


@dataclass(frozen=True)
class Plan:
    """See the port."""

    degrees: Mapping[str, int]
    stages: tuple[range, ...]
    memory: int
    time: float
    memory_error: float = MEMORY_ERROR


def estimate_plan(workload: Workload, degrees: Mapping[str, int]) -> Plan:
    """See the port."""
    whole = complete(degrees)
    problem = obstacle(workload, whole)
    if problem:
        raise ValueError(problem)
    fsdp, pp, shape = whole["fsdp"], whole["pp"], workload.shape
    micro_batches = workload.micro_batches if pp > 1 else 1
    rows = workload.rows // (whole["dp"] * fsdp * micro_batches)
    parts = [block(shape, fsdp, whole["tp"]) for _ in range(shape.layers)]
    parts[0] += embedding(shape, fsdp, whole["tp"])
    parts[-1] += head(shape, fsdp, whole["tp"])
    layers = [layer_cost(workload, one, rows) for one in parts]
    balance = balance_pipeline(layers, pp, micro_batches=micro_batches)
    time = balance.step_time + max(
        _time_of_data(workload, whole, sum((parts[layer] for layer in stage), Part())) for stage in balance.stages
    )
    if pp > 1:
        time += 2 * micro_batches * rows * shape.seq * shape.hidden * _BYTES / workload.bandwidth
    return Plan(whole, balance.stages, max(balance.memory), time)


def layer_cost(workload: Workload, part: Part, rows: int) -> LayerCost:
    """What a part costs with so many rows in a micro-batch."""
    sent = 2 * part.reduced * rows * _BYTES
    return LayerCost(
        _PASSES * part.operations * rows / workload.flops + sent / workload.bandwidth,
        # Adam counts each parameter's steps in a number of its own.
        _BYTES * (_COPIES * part.elements + part.tensors),
        _BYTES * (part.saved * rows + part.saved_once),
    )


def _time_of_data(workload: Workload, degrees: Mapping[str, int], part: Part) -> float:
    """Seconds in which a stage's parameters are gathered twice, and gradients scattered and summed over replicas."""
    fsdp, dp = degrees["fsdp"], degrees["dp"]
    sent = 3 * part.gathered * (fsdp - 1) / fsdp + 2 * part.elements * (dp - 1) / dp
    return sent * _BYTES / workload.bandwidth


def complete(degrees: Mapping[str, int]) -> dict[str, int]:
    """All degrees, those that are not given 1."""
    check_names(degrees)
    for name, degree in degrees.items():
        if not isinstance(degree, int) or isinstance(degree, bool) or degree < 1:
            raise ValueError(f"degree {name} is {degree!r}: expected a positive integer")
    return {name: degrees.get(name, 1) for name in DIMENSIONS}


def check_names(names: Mapping[str, int] | tuple[str, ...]) -> None:
    """Refuses what is no degree's name."""
    for name in names:
        if name not in DIMENSIONS:
            near = difflib.get_close_matches(name, DIMENSIONS, n=3, cutoff=0.4)
            hint = f"; near matches: {', '.join(near)}" if near else ""
            raise ValueError(f"unknown degree {name!r}{hint}. The degrees are {', '.join(DIMENSIONS)}")


def obstacle(workload: Workload, degrees: Mapping[str, int]) -> str:
    """Why a model and batch cannot be divided so; empty if they can."""
    shape, pp, tp = workload.shape, degrees["pp"], degrees["tp"]
    for name in ("heads", "kv_heads", "ffn", "vocab"):
        if getattr(shape, name) % tp:
            return f"tp={tp} does not divide {name}={getattr(shape, name)}"
    if pp > shape.layers:
        return f"pp={pp} stages for {shape.layers} layers"
    if pp > 1 and shape.tied:
        return f"pp={pp} puts the tied embedding and output on two ranks"
    ranks, micro_batches = degrees["dp"] * degrees["fsdp"], workload.micro_batches if pp > 1 else 1
    if workload.rows % (ranks * micro_batches):
        return f"dp x fsdp={ranks} times {micro_batches} micro-batches does not divide {workload.rows} rows"
    return ""
