"""Faults of pipelines on torch_native that are of some of the ranks."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.pipeline_parallel"


@fault(
    id="pp-copies-exchanged-by-ranks-of-the-job",
    symptom="With data parallelism over pipelines a step with tied weights never ends: copies go to other pipelines.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
    watchdog=8,
)
def copies_exchanged_by_ranks_of_the_job(patch: Patch) -> None:
    @patch.around(f"{_OURS}.shared:exchange", parameters=("mine", "buffers", "group"))
    def exchange(original: Any, mine: Any, buffers: Any, group: Any) -> Any:
        patch.reached()
        return original(mine, buffers, None)


@fault(
    id="pp-error-ends-all-pipelines",
    symptom="A bad batch of one pipeline ends the step of all others beside it.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-04"],
    watchdog=8,
)
def error_ends_all_pipelines(patch: Patch) -> None:
    @patch.around(f"{_OURS}.schedules:raise_failures", parameters=("failures", "group"))
    def raise_everywhere(original: Any, failures: Any, group: Any) -> None:
        patch.reached()
        original(failures, None)
