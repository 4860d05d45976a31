"""Faults of fully_shard on torch_native: where backward enters a module, and what its end does."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"
_OURS = "hyper_parallel_tests.engines.torch_native.fully_shard"
_COLLECT = f"{_FSDP}._fsdp_state:collect_grad_tensors"


@fault(
    id="fs-backward-enters-at-first-output-only",
    symptom="A module with two outputs fails in backward when only the second one is used: its weights are shards.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-02"],
    ranks="all",
)
def backward_enters_at_first_output_only(patch: Patch) -> None:
    @patch.around(_COLLECT, parameters=("output",))
    def collect(original: Any, output: Any) -> Any:
        tensors = list(original(output))
        if len(tensors) > 1:
            patch.reached()
        return tensors[:1]


@fault(
    id="fs-outputs-without-gradient-close-the-entry",
    symptom="A module that also returns a mask or a detached tensor is not gathered for backward.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-02"],
    ranks="all",
)
def outputs_without_gradient_close_the_entry(patch: Patch) -> None:
    @patch.around(_COLLECT, parameters=("output",))
    def collect(original: Any, output: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        if any(not tensor.requires_grad for tensor in tensors):
            patch.reached()
            return []
        return original(output)


@fault(
    id="fs-each-output-gathers-anew",
    symptom="Backward of a module with two outputs gathers its parameters twice.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-02"],
    ranks="all",
)
def each_output_gathers_anew(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param_group:FSDPParamGroup.pre_backward", parameters=("self", "default_prefetch"))
    def pre_backward(original: Any, self: Any, *args: Any) -> None:
        if self._training_state.name == "PRE_BACKWARD":
            patch.reached()
            self._to_sharded()
            self.unshard()
            self.wait_for_unshard()
        original(self, *args)


@fault(
    id="fs-unused-modules-reduced",
    symptom="A module that got no gradient sends zeros all the same, and weight decay or momentum move it.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-02"],
    ranks="all",
)
def unused_modules_reduced(patch: Patch) -> None:
    _reduce_unused(patch)


@fault(
    id="fs-unused-modules-reduced-on-one-rank",
    symptom="Training hangs where a module is not used: one rank waits in a reduction that the others leave out.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-02"],
    applied_on=[1],
    watchdog=5,
)
def unused_modules_reduced_on_one_rank(patch: Patch) -> None:
    _reduce_unused(patch)


def _reduce_unused(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param_group:FSDPParamGroup.post_backward", parameters=("self",))
    def post_backward(original: Any, self: Any, *args: Any) -> None:
        if any(not _has_gradient(parameter) for parameter in self.fsdp_params if _was_gathered(parameter)):
            patch.reached()
            self.reduce_scatter_unused_params = True
        original(self, *args)


def _was_gathered(parameter: Any) -> bool:
    return hasattr(parameter, "_unsharded_param")


def _has_gradient(parameter: Any) -> bool:
    return parameter.unsharded_accumulated_grad is not None or parameter._unsharded_param.grad is not None


@fault(
    id="fs-backward-ends-once-only",
    symptom="The first step trains, later ones do not: the end of backward is never asked for again.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-03"],
    ranks="all",
)
def backward_ends_once_only(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_state:FSDPState._root_post_backward_final_callback", parameters=("self",))
    def end(original: Any, self: Any) -> None:
        original(self)
        patch.reached()
        self._state_ctx.post_backward_final_callback_queued = True


@fault(
    id="fs-first-layer-not-reduced",
    symptom="A layer whose inputs need no gradient keeps its own rank's gradient: nothing reduces it at the end.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-03"],
    ranks="all",
)
def first_layer_not_reduced(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_state:FSDPState._register_root_post_backward_final_callback", parameters=("self",))
    def register(_original: Any, self: Any) -> None:
        patch.reached()


@fault(
    id="fs-reset-does-nothing",
    symptom="After an exception in a step training goes on without reductions, although it was reset.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-03"],
    ranks="all",
)
def reset_does_nothing(patch: Patch) -> None:
    patch.replace(f"{_FSDP}._fsdp_state:FSDPState._reset_iter_state", lambda _: lambda self: patch.reached())


@fault(
    id="fs-not-last-backward-not-reduced",
    symptom="Until the last backward of a step nothing is reduced: full gradients fill the memory.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-03"],
    ranks="all",
)
def not_last_backward_not_reduced(patch: Patch) -> None:
    @patch.around(f"{_OURS}.module:HSDPModule.set_is_last_backward", parameters=("self", "is_last_backward"))
    def set_is_last_backward(original: Any, self: Any, is_last_backward: bool) -> None:
        original(self, is_last_backward)
        patch.reached()
        self.set_requires_gradient_sync(is_last_backward)
