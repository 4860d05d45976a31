"""Faults of pipelines on torch_native: stages that do not fit together, and stages that raise."""

from __future__ import annotations

from typing import Any

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
    @patch.around(f"{_OURS}.stage:PipelineStage.forward_one_chunk", parameters=("self", "fwd_chunk_id", "args"))
    def forward(original: Any, self: Any, *args: Any, **options: Any) -> Any:
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
