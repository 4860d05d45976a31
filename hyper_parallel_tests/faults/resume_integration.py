"""Faults of checkpoints by interval on torch_native: made in the wrong order, or the wrong one resumed from."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_TRAINER = "hyper_parallel_tests.engines.torch_native.trainer"
_LOOP = f"{_TRAINER}.loop:BaseTrainer"


def _integration(id: str, symptom: str) -> Any:
    return fault(id=f"resume-{id}", symptom=symptom, capability="resume", layer="l2", must_fail=["RS-2-02"])


@_integration("saved-before-validation", "The validation of the step of a checkpoint is missing behind a restart.")
def saved_before_validation(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.loop:in_order", parameters=("trainer",))
    def order(original: Any, trainer: Any) -> list[Any]:
        found = original(trainer)
        if any(one.name == "checkpoint" for one in found):
            patch.reached()
        return sorted(found, key=lambda one: one.name != "checkpoint")


@_integration("resumes-from-the-oldest", "A restart goes back further than it must.")
def resumes_from_the_oldest(patch: Patch) -> None:
    target = "hyper_parallel_tests.engines.torch_native.checkpoint_manager:CheckpointManager.latest"

    @patch.around(target, parameters=("self",))
    def latest(original: Any, self: Any) -> int | None:
        steps = self.steps()
        if len(steps) > 1:
            patch.reached()
        return steps[0] if steps else None


@_integration("restart-seeds-anew", "Behind a restart all random numbers are those of the run's begin.")
def restart_seeds_anew(patch: Patch) -> None:
    @patch.around(f"{_LOOP}._load", parameters=("self", "folder", "reader"))
    def load(original: Any, self: Any, folder: Any, reader: Any) -> None:
        original(self, folder, reader)
        patch.reached()
        self._begun = False
