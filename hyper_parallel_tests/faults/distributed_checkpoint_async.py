"""Faults of distributed checkpoints on torch_native: saves beside the program."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from hyper_parallel_tests.faults import Patch, fault

_SAVING = "hyper_parallel_tests.engines.torch_native.distributed_checkpoint.saving"
_STAGE = "torch.distributed.checkpoint.staging:DefaultStager.stage"
_RESULT = f"{_SAVING}:AsyncSaveResponse.get_result"


@fault(
    id="checkpoint-async-aliases",
    symptom="A checkpoint has parameters of different steps: those that were written late are newer.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-02"],
)
def async_aliases(patch: Patch) -> None:
    @patch.around(_STAGE, parameters=("self", "state_dict"))
    def stage(_: Any, self: Any, state_dict: Any) -> Any:
        patch.reached()
        return state_dict


@fault(
    id="checkpoint-async-shares-objects",
    symptom="The data position in a checkpoint is further than its weights.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-02"],
)
def async_shares_objects(patch: Patch) -> None:
    @patch.around(_STAGE, parameters=("self", "state_dict"))
    def stage(_: Any, self: Any, state_dict: Any) -> Any:
        patch.reached()
        return tree_map_only(torch.Tensor, lambda one: one.detach().clone(), state_dict)


@fault(
    id="checkpoint-async-divided-tensors-alias",
    symptom="Parameters of a sharded model are those of a later step, whatever is whole is right.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-02"],
)
def async_divided_tensors_alias(patch: Patch) -> None:
    def copied(tensor: Any) -> Any:
        if hasattr(tensor, "to_local"):
            patch.reached()
            return tensor
        return tensor.detach().clone()

    @patch.around(_STAGE, parameters=("self", "state_dict"))
    def stage(_: Any, self: Any, state_dict: Any) -> Any:
        return tree_map_only(torch.Tensor, copied, state_dict)


@fault(
    id="checkpoint-async-failure-swallowed",
    symptom="The disk has been full for days, and nobody was told that there are no checkpoints.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-02"],
)
def async_failure_swallowed(patch: Patch) -> None:
    @patch.around(_RESULT, parameters=("self", "timeout"))
    def get_result(original: Any, self: Any, timeout: float | None = None) -> Any:
        try:
            return original(self, timeout)
        except TimeoutError:
            raise
        except BaseException:
            patch.reached()
            return None


@fault(
    id="checkpoint-async-failure-told-to-rank-0-alone",
    symptom="Rank 0 stops for a failed save, and the others wait for it in the next collective.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-02"],
    ranks=[1],
)
def async_failure_told_to_rank_0_alone(patch: Patch) -> None:
    @patch.around(_RESULT, parameters=("self", "timeout"))
    def get_result(original: Any, self: Any, timeout: float | None = None) -> Any:
        try:
            return original(self, timeout)
        except BaseException:
            if dist.get_rank() == 0 or not self.done():
                raise
            patch.reached()
            return None


@fault(
    id="checkpoint-async-failure-told-once",
    symptom="Whoever asks second, such as the end of the training, takes a failed save for a good one.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-02"],
)
def async_failure_told_once(patch: Patch) -> None:
    told: set[int] = set()

    @patch.around(_RESULT, parameters=("self", "timeout"))
    def get_result(original: Any, self: Any, timeout: float | None = None) -> Any:
        if id(self._future) in told:
            patch.reached()
            return None
        try:
            return original(self, timeout)
        except BaseException:
            if self.done():
                told.add(id(self._future))
            raise


@fault(
    id="checkpoint-async-done-at-once",
    symptom="A program that asks whether the save is done ends before it is.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-02"],
)
def async_done_at_once(patch: Patch) -> None:
    @patch.around(f"{_SAVING}:AsyncSaveResponse.done", parameters=("self",))
    def done(original: Any, self: Any) -> bool:
        if not original(self):
            patch.reached()
        return True


@fault(
    id="checkpoint-save-does-not-wait",
    symptom="Two saves under way write at once, and an old one may end last.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-02"],
    watchdog=10,
)
def save_does_not_wait(patch: Patch) -> None:
    @patch.around(f"{_SAVING}:_finish_what_is_under_way")
    def finish(_: Any) -> None:
        patch.reached()


@fault(
    id="checkpoint-async-state-asked-for-twice",
    symptom="An object with a state is asked for it again by the thread that writes, in the middle of a step.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-02"],
)
def async_state_asked_for_twice(patch: Patch) -> None:
    @patch.around(f"{_SAVING}:_group_for_saves")
    def group(original: Any) -> Any:
        return original()

    @patch.around("torch.distributed.checkpoint.state_dict_saver:_stateful_to_state_dict", parameters=("state_dict",))
    def state(original: Any, state_dict: Any) -> Any:
        patch.reached()
        original(state_dict)
        return original(state_dict)
