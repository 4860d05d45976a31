"""Faults of a trainer's exports on torch_native: what is in them, and how it is rounded."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_TRAINER = "hyper_parallel_tests.engines.torch_native.trainer"
_LOOP = f"{_TRAINER}.loop:BaseTrainer"


def _export(id: str, symptom: str) -> Any:
    return fault(id=f"resume-{id}", symptom=symptom, capability="resume", layer="l2", must_fail=["RS-2-02"])


@_export("export-of-everything", "An export has the optimizer too, and is three times as large.")
def export_of_everything(patch: Patch) -> None:
    @patch.around(f"{_LOOP}.export", parameters=("self", "folder"))
    def export(original: Any, self: Any, folder: Any, *, dtype: Any = None) -> None:
        patch.reached()
        optimizer = {key: one for key, one in self.state_dict().items() if key.startswith("optimizer.")}
        model = _loop().get_model_state_dict(self.model)
        if dtype is not None:
            model = {name: one.to(dtype) if one.is_floating_point() else one for name, one in model.items()}
        _loop().save(model | optimizer, checkpoint_id=folder)


@_export("export-rounds-not", "An export is not in the dtype that was asked for.")
def export_rounds_the_model(patch: Patch) -> None:
    @patch.around(f"{_LOOP}.export", parameters=("self", "folder"))
    def export(original: Any, self: Any, folder: Any, *, dtype: Any = None) -> None:
        patch.reached()
        if dtype is None:
            original(self, folder)
            return
        # By way of a narrower one, as a cast of the optimizer's copy would be.
        model = _loop().get_model_state_dict(self.model)
        model = {
            name: one.to(torch.float16).to(dtype) if one.is_floating_point() else one for name, one in model.items()
        }
        _loop().save(model, checkpoint_id=folder)


@_export("export-rounds-counts", "In an export in bfloat16 counts of steps are rounded to three digits.")
def export_rounds_counts(patch: Patch) -> None:
    @patch.around(f"{_LOOP}.export", parameters=("self", "folder"))
    def export(original: Any, self: Any, folder: Any, *, dtype: Any = None) -> None:
        if dtype is None:
            original(self, folder)
            return
        patch.reached()
        model = {name: one.to(dtype) for name, one in _loop().get_model_state_dict(self.model).items()}
        _loop().save(model, checkpoint_id=folder)


def _loop() -> Any:
    return importlib.import_module(f"{_TRAINER}.loop")
