"""Faults of runs on torch_native that end for want of progress."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault


@fault(
    id="resume-end-forgotten",
    symptom="A run that had ended for want of progress goes on.",
    capability="resume",
    layer="l2",
    must_fail=["RS-2-02"],
)
def end_forgotten(patch: Patch) -> None:
    @patch.around(
        "hyper_parallel_tests.engines.torch_native.trainer.state:_set_progress", parameters=("trainer", "progress")
    )
    def put(original: Any, trainer: Any, progress: Any) -> None:
        if progress["should_stop"]:
            patch.reached()
        original(trainer, progress | {"should_stop": False})
