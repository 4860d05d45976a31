"""Faults of the cost model on torch_native, seen when plans are carried out: bytes that are not those on the ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_COSTS = "hyper_parallel_tests.engines.torch_native.auto_parallel.costs"
_SEARCH = "hyper_parallel_tests.engines.torch_native.auto_parallel.search"


@fault(
    id="plan-states-counted-once",
    symptom="Plans that were said to fit do not: of Adam's two states one is in the estimate.",
    capability="auto_parallel",
    layer="l2",
    must_fail=["AP-2-01"],
    ranks="all",
)
def states_counted_once(patch: Patch) -> None:
    @patch.around(f"{_COSTS}:layer_cost", parameters=("workload", "part", "rows"))
    def cost(original: Any, workload: Any, part: Any, rows: int) -> Any:
        found = original(workload, part, rows)
        patch.reached()
        return replace(found, parameter_memory=found.parameter_memory * 3 // 4)


@fault(
    id="plan-activations-wholly-divided",
    symptom="With tensor parallelism the estimate is too low: norms and logits are whole on each rank.",
    capability="auto_parallel",
    layer="l2",
    must_fail=["AP-2-01"],
    ranks="all",
)
def activations_wholly_divided(patch: Patch) -> None:
    for name in ("block", "head"):

        @patch.around(f"{_COSTS}:{name}", parameters=("shape", "fsdp", "tp"))
        def part(original: Any, shape: Any, fsdp: int, tp: int) -> Any:
            if tp == 1:
                return original(shape, fsdp, tp)
            patch.reached()
            return original(shape, fsdp, tp)._replace(saved=original(shape, fsdp, 1).saved // tp)


@fault(
    id="plan-rows-not-divided",
    symptom="Plans that would fit are left out: each rank is taken to have the whole batch.",
    capability="auto_parallel",
    layer="l2",
    must_fail=["AP-2-01"],
    ranks="all",
)
def rows_not_divided(patch: Patch) -> None:
    @patch.around(f"{_COSTS}:layer_cost", parameters=("workload", "part", "rows"))
    def cost(original: Any, workload: Any, part: Any, rows: int) -> Any:
        if rows != workload.rows:
            patch.reached()
        return original(workload, part, workload.rows)


@fault(
    id="plan-stages-lose-a-block",
    symptom="A plan with stages runs a shallower model: one block is in none of them.",
    capability="auto_parallel",
    layer="l2",
    must_fail=["AP-2-01"],
    ranks="all",
)
def stages_lose_a_block(patch: Patch) -> None:
    @patch.around(f"{_SEARCH}:estimate_plan", parameters=("workload", "degrees"))
    def estimate(original: Any, workload: Any, degrees: Any) -> Any:
        plan = original(workload, degrees)
        if len(plan.stages) == 1:
            return plan
        patch.reached()
        first = range(plan.stages[0].start, plan.stages[0].stop - 1)
        return replace(plan, stages=(first, *plan.stages[1:]))
