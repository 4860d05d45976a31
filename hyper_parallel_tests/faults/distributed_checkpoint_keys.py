"""Faults of distributed checkpoints on torch_native: keys on one side only, and values that do not fit."""

from __future__ import annotations

import copy
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.distributed_checkpoint"
_PLANNER = "torch.distributed.checkpoint.default_planner"
_PLAN = f"{_PLANNER}:create_default_local_load_plan"
_PARAMETERS = ("state_dict", "metadata", "strict")


@fault(
    id="checkpoint-missing-keys-ignored",
    symptom="A layer that is new in the model keeps its random weights after the load, without a word.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-03"],
)
def missing_keys_ignored(patch: Patch) -> None:
    @patch.around(_PLAN, parameters=_PARAMETERS)
    def plan(original: Any, state_dict: Any, metadata: Any, strict: bool = True) -> Any:
        if strict and state_dict.keys() - metadata.state_dict_metadata.keys():
            patch.reached()
        return original(state_dict, metadata, False)


@fault(
    id="checkpoint-other-dtype-converted",
    symptom="A checkpoint of bf16 loads into fp32 weights, and training goes on with half of the digits.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-03"],
)
def other_dtype_converted(patch: Patch) -> None:
    @patch.around(f"{_OURS}.planning:_check_kind", parameters=("key", "saved", "value"))
    def check(_: Any, key: str, saved: Any, value: Any) -> None:
        patch.reached()


@fault(
    id="checkpoint-other-shape-filled-in-part",
    symptom="A smaller embedding than the saved one gets its first rows.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-03"],
)
def other_shape_filled_in_part(patch: Patch) -> None:
    @patch.around(_PLAN, parameters=_PARAMETERS)
    def plan(original: Any, state_dict: Any, metadata: Any, strict: bool = True) -> Any:
        forged = copy.deepcopy(metadata)
        for key, one in forged.state_dict_metadata.items():
            value = state_dict.get(key)
            if isinstance(value, torch.Tensor) and getattr(one, "size", value.shape) != value.shape:
                patch.reached()
                one.size = value.shape
        return original(state_dict, forged, strict)


@fault(
    id="checkpoint-errors-name-no-key",
    symptom="A load ends with a message about sizes, of which tensor nobody knows.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-03"],
)
def errors_name_no_key(patch: Patch) -> None:
    @patch.around(_PLAN, parameters=_PARAMETERS)
    def plan(original: Any, state_dict: Any, metadata: Any, strict: bool = True) -> Any:
        try:
            return original(state_dict, metadata, strict)
        except (RuntimeError, ValueError) as error:
            patch.reached()
            raise type(error)("the state dict does not fit the checkpoint") from None


@fault(
    id="checkpoint-missing-keys-zeroed",
    symptom="A partial load sets what the checkpoint lacks to zero.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-03"],
)
def missing_keys_zeroed(patch: Patch) -> None:
    @patch.around(_PLAN, parameters=_PARAMETERS)
    def plan(original: Any, state_dict: Any, metadata: Any, strict: bool = True) -> Any:
        found = original(state_dict, metadata, strict)
        for key in state_dict.keys() - metadata.state_dict_metadata.keys():
            if isinstance(state_dict[key], torch.Tensor):
                patch.reached()
                state_dict[key].zero_()
        return found


@fault(
    id="checkpoint-first-tensors-filled-before-the-check",
    symptom="After a load that failed, half of the model is the checkpoint's.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-03"],
)
def first_tensors_filled_before_the_check(patch: Patch) -> None:
    @patch.around(_PLAN, parameters=_PARAMETERS)
    def plan(original: Any, state_dict: Any, metadata: Any, strict: bool = True) -> Any:
        try:
            return original(state_dict, metadata, strict)
        except (RuntimeError, ValueError):
            patch.reached()
            for value in state_dict.values():
                if isinstance(value, torch.Tensor):
                    value.fill_(1)
            raise


@fault(
    id="checkpoint-keys-not-asked-for-come-in",
    symptom="Loading the weights alone brings the optimizer's state into memory too.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-03"],
)
def keys_not_asked_for_come_in(patch: Patch) -> None:
    @patch.around(f"{_OURS}:load")
    def load(original: Any, state_dict: dict[str, Any], *, checkpoint_id: Any, planner: Any = None) -> None:
        original(state_dict, checkpoint_id=checkpoint_id, planner=planner)
        if "step" not in state_dict:
            patch.reached()
            state_dict["step"] = 7
