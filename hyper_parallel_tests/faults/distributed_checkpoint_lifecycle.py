"""Faults of distributed checkpoints on torch_native: what saves and loads do to the objects at hand."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful

from hyper_parallel_tests.faults import Patch, fault

_ENGINE = "hyper_parallel_tests.engines.torch_native"
_OURS = f"{_ENGINE}.distributed_checkpoint"
_SET_MODEL = f"{_ENGINE}.model_state_dict:set_model_state_dict"
_SET_OPTIMIZER = f"{_ENGINE}.optim_state_dict:set_optim_state_dict"


@fault(
    id="checkpoint-load-makes-new-tensors",
    symptom="The model keeps its random weights: the load has filled other tensors than the model's.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-01"],
)
def load_makes_new_tensors(patch: Patch) -> None:
    @patch.around(f"{_OURS}:load")
    def load(original: Any, state_dict: dict[str, Any], *, checkpoint_id: Any, planner: Any = None) -> None:
        patch.reached()
        for key, value in state_dict.items():
            if isinstance(value, torch.Tensor):
                state_dict[key] = value.detach().clone()
        original(state_dict, checkpoint_id=checkpoint_id, planner=planner)


@fault(
    id="checkpoint-load-puts-new-parameters",
    symptom="After a load the optimizer steps parameters that the model no longer has.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-01"],
)
def load_puts_new_parameters(patch: Patch) -> None:
    @patch.around(_SET_MODEL, parameters=("model", "model_state_dict"))
    def set_model(original: Any, model: Any, model_state_dict: Any, *, options: Any = None) -> Any:
        found = original(model, model_state_dict, options=options)
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                patch.reached()
                setattr(module, name, torch.nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
        return found


@fault(
    id="checkpoint-load-unfreezes",
    symptom="Frozen layers train after a resume.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-01"],
)
def load_unfreezes(patch: Patch) -> None:
    @patch.around(_SET_MODEL, parameters=("model", "model_state_dict"))
    def set_model(original: Any, model: Any, model_state_dict: Any, *, options: Any = None) -> Any:
        patch.reached()
        model.requires_grad_(True)
        return original(model, model_state_dict, options=options)


@fault(
    id="checkpoint-load-drops-hooks",
    symptom="What counted on hooks of the model, such as offloading, does nothing after a resume.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-01"],
)
def load_drops_hooks(patch: Patch) -> None:
    @patch.around(_SET_MODEL, parameters=("model", "model_state_dict"))
    def set_model(original: Any, model: Any, model_state_dict: Any, *, options: Any = None) -> Any:
        if model._forward_hooks:
            patch.reached()
            model._forward_hooks.clear()
        return original(model, model_state_dict, options=options)


@fault(
    id="checkpoint-optimizer-not-filled",
    symptom="The loss jumps at the first steps after a resume: moments and step counts begin anew.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-01"],
)
def optimizer_not_filled(patch: Patch) -> None:
    @patch.around(_SET_OPTIMIZER, parameters=("model", "optimizer", "optim_state_dict"))
    def set_optimizer(original: Any, model: Any, optimizer: Any, optim_state_dict: Any, *, options: Any = None) -> None:
        patch.reached()


@fault(
    id="checkpoint-save-empties-the-dict",
    symptom="A state dict that is made once and saved often is saved once.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-01"],
)
def save_empties_the_dict(patch: Patch) -> None:
    @patch.around(f"{_OURS}:save")
    def save(original: Any, state_dict: dict[str, Any], *, checkpoint_id: Any, planner: Any = None) -> Any:
        metadata = original(state_dict, checkpoint_id=checkpoint_id, planner=planner)
        for key in ("list", "step"):
            if state_dict.pop(key, None):
                patch.reached()
        return metadata


@fault(
    id="checkpoint-objects-not-told",
    symptom="Schedulers and data loaders go on from their beginning after a resume.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-01"],
)
def objects_not_told(patch: Patch) -> None:
    @patch.around(f"{_OURS}:load")
    def load(original: Any, state_dict: dict[str, Any], *, checkpoint_id: Any, planner: Any = None) -> None:
        values = dict(state_dict)
        for key, value in state_dict.items():
            if isinstance(value, Stateful):
                patch.reached()
                values[key] = copy.deepcopy(value.state_dict())
        original(values, checkpoint_id=checkpoint_id, planner=planner)
