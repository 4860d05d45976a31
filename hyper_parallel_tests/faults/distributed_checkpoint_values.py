"""Faults of distributed checkpoints on torch_native: values that come back as others, or in another's place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.checkpoint.planner import WriteItemType

from hyper_parallel_tests.faults import Patch, fault

_ENGINE = "hyper_parallel_tests.engines.torch_native"
_PLANNER = "torch.distributed.checkpoint.default_planner"
_SET_OPTIMIZER = f"{_ENGINE}.optim_state_dict:set_optim_state_dict"
_GET_OPTIMIZER = f"{_ENGINE}.optim_state_dict:get_optim_state_dict"


def _written(patch: Patch, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Tensors are written as ``change`` has them."""

    @patch.around(f"{_PLANNER}:DefaultSavePlanner.transform_object", parameters=("self", "write_item", "object"))
    def transform(original: Any, self: Any, write_item: Any, object: Any) -> Any:
        found = original(self, write_item, object)
        if write_item.type == WriteItemType.BYTE_IO:
            return found
        changed = change(found)
        if changed is not found:
            patch.reached()
        return changed


@fault(
    id="checkpoint-through-fp32",
    symptom="fp64 tensors come back with the digits of fp32.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-01"],
)
def through_fp32(patch: Patch) -> None:
    _written(patch, lambda one: one.float().double() if one.dtype == torch.float64 else one)


@fault(
    id="checkpoint-not-a-number-is-zero",
    symptom="A checkpoint of a run that has diverged looks healthy.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-01"],
)
def not_a_number_is_zero(patch: Patch) -> None:
    _written(patch, lambda one: one.nan_to_num() if one.is_floating_point() and one.isnan().any() else one)


@fault(
    id="checkpoint-strides-ignored",
    symptom="Transposed weights come back as if they were not.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-01"],
)
def strides_ignored(patch: Patch) -> None:
    def change(one: torch.Tensor) -> torch.Tensor:
        if one.is_contiguous() or one.untyped_storage().nbytes() < one.numel() * one.element_size():
            return one
        return one.as_strided(one.shape, torch.empty(one.shape, device="meta").stride(), 0)

    _written(patch, change)


@fault(
    id="checkpoint-objects-left",
    symptom="Counts and schedules begin anew after a resume.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-01"],
)
def objects_left(patch: Patch) -> None:
    @patch.around(f"{_PLANNER}:DefaultLoadPlanner.load_bytes", parameters=("self", "read_item", "value"))
    def load_bytes(_: Any, self: Any, read_item: Any, value: Any) -> None:
        patch.reached()


@fault(
    id="checkpoint-tuples-become-lists",
    symptom="Optimizers whose hyper-parameters are tuples refuse the state that they have saved.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-01"],
)
def tuples_become_lists(patch: Patch) -> None:
    @patch.around(f"{_PLANNER}:set_element", parameters=("root_dict", "path", "value"))
    def set_element(original: Any, root_dict: Any, path: Any, value: Any) -> None:
        if type(value) is tuple:
            patch.reached()
            value = list(value)
        original(root_dict, path, value)


@fault(
    id="checkpoint-optimizer-state-by-order",
    symptom="After a layer was moved in the source, its moments are another layer's.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-01"],
)
def optimizer_state_by_order(patch: Patch) -> None:
    def numbered(model: Any) -> dict[str, str]:
        return {name: f"number {index}" for index, (name, _) in enumerate(model.named_parameters())}

    @patch.around(_GET_OPTIMIZER, parameters=("model", "optimizer"))
    def get(original: Any, model: Any, optimizer: Any, *, options: Any = None) -> Any:
        patch.reached()
        found = original(model, optimizer, options=options)
        return found | {"state": {numbered(model)[name]: one for name, one in found["state"].items()}}

    @patch.around(_SET_OPTIMIZER, parameters=("model", "optimizer", "optim_state_dict"))
    def put(original: Any, model: Any, optimizer: Any, optim_state_dict: Any, *, options: Any = None) -> None:
        names = {number: name for name, number in numbered(model).items()}
        state = {names[number]: one for number, one in optim_state_dict["state"].items()}
        original(model, optimizer, optim_state_dict | {"state": state}, options=options)


@fault(
    id="checkpoint-hyper-parameters-left",
    symptom="After a resume the learning rate is that of the configuration, not that of the run.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-01"],
)
def hyper_parameters_left(patch: Patch) -> None:
    @patch.around(_SET_OPTIMIZER, parameters=("model", "optimizer", "optim_state_dict"))
    def put(original: Any, model: Any, optimizer: Any, optim_state_dict: Any, *, options: Any = None) -> None:
        patch.reached()
        own = [{**group} for group in optimizer.param_groups]
        original(model, optimizer, optim_state_dict, options=options)
        for group, before in zip(optimizer.param_groups, own, strict=True):
            group.update({key: value for key, value in before.items() if key != "params"})


@fault(
    id="checkpoint-step-counts-left",
    symptom="Adam's first steps after a resume are too large: it corrects for a bias that is gone.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-01"],
)
def step_counts_left(patch: Patch) -> None:
    @patch.around(_SET_OPTIMIZER, parameters=("model", "optimizer", "optim_state_dict"))
    def put(original: Any, model: Any, optimizer: Any, optim_state_dict: Any, *, options: Any = None) -> None:
        original(model, optimizer, optim_state_dict, options=options)
        for state in optimizer.state.values():
            if "step" in state:
                patch.reached()
                state["step"] = torch.zeros_like(state["step"])


@fault(
    id="checkpoint-buffers-not-saved",
    symptom="Running statistics begin anew after a resume.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-01"],
)
def buffers_not_saved(patch: Patch) -> None:
    @patch.around(f"{_ENGINE}.model_state_dict:get_model_state_dict", parameters=("model",))
    def get(original: Any, model: Any, *, options: Any = None) -> Any:
        found = original(model, options=options)
        for name, buffer in model.named_buffers():
            patch.reached()
            found[name] = copy.deepcopy(buffer).zero_()
        return found


@fault(
    id="checkpoint-rank-0s-own-for-all",
    symptom="All ranks draw rank 0's random numbers after a resume.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-01"],
    ranks=[1],
)
def rank_0s_own_for_all(patch: Patch) -> None:
    @patch.around(f"{_PLANNER}:create_default_local_load_plan", parameters=("state_dict", "metadata", "strict"))
    def plan(original: Any, state_dict: Any, metadata: Any, strict: bool = True) -> Any:
        found = original(state_dict, metadata, strict)
        for item in found.items:
            if item.storage_index.fqn.endswith(".rank 1"):
                patch.reached()
                object.__setattr__(item.storage_index, "fqn", item.storage_index.fqn.replace("rank 1", "rank 0"))
        return found
