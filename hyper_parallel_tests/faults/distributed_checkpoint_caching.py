"""Faults of distributed checkpoints on torch_native: plans that are kept from one save to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_PLANNER = "torch.distributed.checkpoint.default_planner"


def _compared(patch: Patch, essence: Callable[[list[Any]], Any]) -> None:
    """Plans count as equal where what ``essence`` gives of their items is."""

    @patch.around(f"{_PLANNER}:_compare_save_plans", parameters=("plan", "other_plan"))
    def compare(original: Any, plan: Any, other_plan: Any) -> bool:
        equal = essence(plan.items) == essence(other_plan.items)
        if equal and not original(plan, other_plan):
            patch.reached()
        return equal


@fault(
    id="checkpoint-kept-plan-never-changes",
    symptom="Parameters that are unfrozen after the first save are in no checkpoint.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-01"],
)
def kept_plan_never_changes(patch: Patch) -> None:
    _compared(patch, lambda items: None)


@fault(
    id="checkpoint-kept-plan-of-other-objects",
    symptom="What is no tensor and came into the state dict after the first save is in no checkpoint.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-01"],
)
def kept_plan_of_other_objects(patch: Patch) -> None:
    _compared(patch, lambda items: [(item.index, item.tensor_data.size) for item in items if item.tensor_data])


@fault(
    id="checkpoint-kept-plan-of-other-shapes",
    symptom="After a change of the vocabulary's size the metadata have the old one.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-01"],
)
def kept_plan_of_other_shapes(patch: Patch) -> None:
    _compared(patch, lambda items: [(item.type, item.index.fqn) for item in items])
