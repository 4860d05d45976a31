"""Faults of pipelines on torch_native: stages that do not fit together, and stages that raise."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.pipeline_parallel"


@fault(
    id="pp-plans-not-compared",
    symptom="One rank with another number of micro-batches, and the job hangs without a word.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-04"],
    watchdog=5,
)
def plans_not_compared(patch: Patch) -> None:
    @patch.around(f"{_OURS}.schedules:agree_on", parameters=("plan", "stage_num", "group"))
    def agree(original: Any, plan: Any, stage_num: int, group: Any) -> Any:
        patch.reached()
        return [plan]


@fault(
    id="pp-error-stays-where-it-was-raised",
    symptom="A stage raises and its rank ends with an error, while the others go on as if nothing had happened.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-04"],
)
def error_stays_where_it_was_raised(patch: Patch) -> None:
    @patch.around(f"{_OURS}.schedules:raise_failures", parameters=("failures", "group"))
    def raise_own(original: Any, failures: Any, group: Any) -> None:
        patch.reached()
        if failures:
            raise RuntimeError(failures[0].line()) from failures[0].error


@fault(
    id="pp-stage-raises-at-once",
    symptom="A stage raises in the middle of a run, and its neighbours wait for its messages until they are killed.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-04"],
    watchdog=5,
)
def stage_raises_at_once(patch: Patch) -> None:
    _raises_at_once(patch, "forward_one_chunk")


@fault(
    id="pp-weights-raise-at-once",
    symptom="With zero bubbles an error in the weights' part of a backward leaves the neighbours waiting.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-04"],
    watchdog=5,
)
def weights_raise_at_once(patch: Patch) -> None:
    _raises_at_once(patch, "backward_weight_one_chunk")


def _raises_at_once(patch: Patch, method: str) -> None:
    @patch.around(f"{_OURS}.stage:PipelineStage.{method}", parameters=("self",))
    def compute(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        found = original(self, *args, **options)
        if self.failure is not None:
            patch.reached()
            raise self.failure.error
        return found


@fault(
    id="pp-error-left-over",
    symptom="After an error that was caught, each further run raises the same one.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-04"],
)
def error_left_over(patch: Patch) -> None:
    @patch.around(f"{_OURS}.stage:PipelineStage.start_again", parameters=("self",))
    def start(original: Any, self: Any) -> None:
        failure = self.failure
        original(self)
        if failure is not None:
            patch.reached()
            self.failure = failure


@fault(
    id="pp-places-of-stages-not-compared",
    symptom="Stages that are spread over the ranks otherwise than the schedule has them wait for each other for ever.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-04"],
    watchdog=5,
)
def places_of_stages_not_compared(patch: Patch) -> None:
    @patch.around(f"{_OURS}.schedules:agree_on", parameters=("plan", "stage_num", "group"))
    def agree(original: Any, plan: Any, stage_num: int, group: Any) -> Any:
        here = dict.fromkeys(plan.stages, dist.get_rank(group))
        if any(plan.places[stage] != rank for stage, rank in here.items()):
            patch.reached()
        return original(plan._replace(places=here), stage_num, group)


def _said_in_common(patch: Patch, change: Callable[[str], str]) -> None:
    """Changes what a rank says of its plan that must be the same on all."""

    @patch.around(f"{_OURS}.schedules:agree_on", parameters=("plan", "stage_num", "group"))
    def agree(original: Any, plan: Any, stage_num: int, group: Any) -> Any:
        said = change(plan.common)
        if said != plan.common:
            patch.reached()
        return original(plan._replace(common=said), stage_num, group)


@fault(
    id="pp-numbers-of-stages-not-compared",
    symptom="One rank is set up for a longer pipeline: it ends with an error, and the others wait for it for ever.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-04"],
    watchdog=5,
)
def numbers_of_stages_not_compared(patch: Patch) -> None:
    _said_in_common(patch, lambda said: re.sub(r"\d+ stages", "its stages", said))


@fault(
    id="pp-files-not-compared",
    symptom="Ranks that have read different versions of a schedule's file hang, or mix micro-batches up.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-04"],
    watchdog=5,
)
def files_not_compared(patch: Patch) -> None:
    _said_in_common(patch, lambda said: re.sub(r"of \{.*\}", "of its file", said))


@fault(
    id="pp-argument-without-rows-raises-alone",
    symptom="A number given as a tensor ends one rank with an error about an index, and the others hang.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-04"],
    watchdog=5,
)
def argument_without_rows_raises_alone(patch: Patch) -> None:
    @patch.around(f"{_OURS}.schedules:_Schedule._described", parameters=("self", "args", "kwargs"))
    def described(original: Any, self: Any, args: Any, kwargs: Any) -> Any:
        if any(isinstance(one, torch.Tensor) and not one.ndim for one in kwargs.values()):
            patch.reached()
            raise IndexError("list index out of range")
        return original(self, args, kwargs)


@fault(
    id="pp-outputs-of-any-shape-sent",
    symptom="A micro-batch with fewer rows goes through: the next stage takes what is left in its buffer for the rest.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-04"],
    watchdog=5,
)
def outputs_of_any_shape_sent(patch: Patch) -> None:
    @patch.around(f"{_OURS}.stage:PipelineStage._check_shapes", parameters=("self", "fwd_chunk_id"))
    def check(original: Any, self: Any, fwd_chunk_id: int) -> None:
        patch.reached()
