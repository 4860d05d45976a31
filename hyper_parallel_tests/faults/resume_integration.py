"""Faults of the trainer on torch_native: what it does in the wrong order, or with the wrong checkpoint."""

from __future__ import annotations

import importlib
from typing import Any

import torch

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


@_integration("export-of-everything", "An export has the optimizer too, and is three times as large.")
def export_of_everything(patch: Patch) -> None:
    @patch.around(f"{_LOOP}.export", parameters=("self", "folder"))
    def export(original: Any, self: Any, folder: Any, *, dtype: Any = None) -> None:
        patch.reached()
        optimizer = {key: one for key, one in self.state_dict().items() if key.startswith("optimizer.")}
        model = _loop().get_model_state_dict(self.model)
        if dtype is not None:
            model = {name: one.to(dtype) for name, one in model.items()}
        _loop().save(model | optimizer, checkpoint_id=folder)


@_integration("export-rounds-not", "An export is not in the dtype that was asked for.")
def export_rounds_the_model(patch: Patch) -> None:
    @patch.around(f"{_LOOP}.export", parameters=("self", "folder"))
    def export(original: Any, self: Any, folder: Any, *, dtype: Any = None) -> None:
        patch.reached()
        if dtype is None:
            original(self, folder)
            return
        # By way of a narrower one, as a cast of the optimizer's copy would be.
        model = _loop().get_model_state_dict(self.model)
        model = {name: one.to(torch.float16).to(dtype) for name, one in model.items()}
        _loop().save(model, checkpoint_id=folder)


@_integration("equal-is-better", "A run without progress never ends early.")
def equal_is_better(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.callbacks:BestMetricCallback.on_evaluate", parameters=("self", "state"))
    def evaluate(original: Any, self: Any, state: Any, *, metrics: Any) -> None:
        if self.best is not None and metrics["loss"] == self.best:
            patch.reached()
            self.best += 1
        original(self, state, metrics=metrics)


@_integration("restart-seeds-anew", "Behind a restart all random numbers are those of the run's begin.")
def restart_seeds_anew(patch: Patch) -> None:
    @patch.around(f"{_LOOP}._load", parameters=("self", "folder", "reader"))
    def load(original: Any, self: Any, folder: Any, reader: Any) -> None:
        original(self, folder, reader)
        patch.reached()
        self._begun = False


@_integration("end-forgotten", "A run that had ended for want of progress goes on.")
def end_forgotten(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.state:_set_progress", parameters=("trainer", "progress"))
    def put(original: Any, trainer: Any, progress: Any) -> None:
        if progress["should_stop"]:
            patch.reached()
        original(trainer, progress | {"should_stop": False})


def _loop() -> Any:
    return importlib.import_module(f"{_TRAINER}.loop")
