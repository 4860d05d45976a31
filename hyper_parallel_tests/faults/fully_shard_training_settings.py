"""Faults of fully_shard on torch_native in training: precision, offload, saved state, unused parts, factors."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"
_OURS = "hyper_parallel_tests.engines.torch_native"


@fault(
    id="fs-reduce-dtype-dropped-at-init",
    symptom="Gradients of a low-precision network are summed in its dtype, whatever reduce_dtype says.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-03"],
)
def reduce_dtype_not_read(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param_group:FSDPParamGroup._init_mp_dtypes", parameters=("self",))
    def init_dtypes(original: Any, self: Any) -> None:
        original(self)
        if self._reduce_dtype is not None:
            patch.reached()
            self._reduce_dtype = None


@fault(
    id="fs-offloaded-shards-copied-once",
    symptom="With CPU offload the network never changes: each step computes with the shards of the first.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-03"],
    ranks="all",
)
def offloaded_shards_copied_once(patch: Patch) -> None:
    copies: dict[Any, list[torch.Tensor]] = {}

    def make(original: Any) -> Any:
        def all_gather_inputs(self: Any) -> list[torch.Tensor]:
            now = original.fget(self)
            if not self.offload_to_cpu:
                return now
            if self in copies:
                patch.reached()
            return copies.setdefault(self, [one.clone() for one in now])

        return property(all_gather_inputs)

    patch.replace(f"{_FSDP}._fsdp_param:FSDPParam.all_gather_inputs", make)


@fault(
    id="fs-optimizer-state-not-loaded",
    symptom="The loss jumps after a restart: the optimizer starts again without its momentum.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-04"],
    ranks="all",
)
def optimizer_state_not_loaded(patch: Patch) -> None:
    @patch.around(
        f"{_OURS}.optim_state_dict:set_optim_state_dict", parameters=("model", "optimizer", "optim_state_dict")
    )
    def set_optim_state_dict(_: Any, *args: Any, **kwargs: Any) -> None:
        patch.reached()


@fault(
    id="fs-full-state-is-a-shard",
    symptom="The file of the full state holds one rank's rows and zeros for those of the others.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-04"],
)
def full_state_is_a_shard(patch: Patch) -> None:
    @patch.around(f"{_OURS}.model_state_dict:get_model_state_dict", parameters=("model", "options"))
    def get_model_state_dict(original: Any, model: Any, *, options: Any = None) -> Any:
        state = original(model, options=options)
        if options is not None and options.full_state_dict:
            for one in state.values():
                patch.reached()
                one[-(one.shape[0] // 2) :] = 0
        return state


@fault(
    id="fs-unused-parameters-get-zeros",
    symptom="Parameters without a part in a step get gradients of zeros, and momentum moves them.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-05"],
    ranks="all",
)
def unused_parameters_get_zeros(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param_group:FSDPParamGroup.post_backward", parameters=("self", "unused"))
    def post_backward(original: Any, self: Any, *unused: Any) -> None:
        gathered = [one for one in self.fsdp_params if hasattr(one, "_unsharded_param")]
        if any(one._unsharded_param.grad is None for one in gathered):
            patch.reached()
        self.reduce_scatter_unused_params = True
        original(self, *unused)


@fault(
    id="fs-buffers-of-rank-0-everywhere",
    symptom="Batch statistics are overwritten by rank 0's, so evaluation differs from what DDP gives.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-05"],
)
def buffers_of_rank_0_everywhere(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_state:FSDPState._root_pre_forward", parameters=("self", "module", "args", "kwargs"))
    def root_pre_forward(original: Any, self: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if self._is_root is not False:
            for buffer in module.buffers():
                patch.reached()
                torch.distributed.broadcast(buffer, src=0)
        return original(self, module, args, kwargs)


@fault(
    id="fs-scaling-factor-not-read",
    symptom="set_gradient_scaling_factor is accepted and gradients stay as they are.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-06"],
    ranks="all",
)
def scaling_factor_not_read(patch: Patch) -> None:
    @patch.around(f"{_OURS}.fully_shard.module:HSDPModule.set_gradient_scaling_factor", parameters=("self", "factor"))
    def write_only(_: Any, self: Any, factor: Any) -> None:
        patch.reached()
        self.gradient_scaling_factor = factor


@fault(
    id="fs-scaling-factor-ends-reduce-op",
    symptom='A factor set after set_reduce_op_type("sum") brings the average back: gradients are too small.',
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-06"],
    ranks="all",
)
def scaling_factor_ends_reduce_op(patch: Patch) -> None:
    @patch.around(f"{_OURS}.fully_shard.module:HSDPModule.set_gradient_scaling_factor", parameters=("self", "factor"))
    def set_factor(original: Any, self: Any, factor: Any) -> None:
        patch.reached()
        self.set_reduce_op_type("avg")
        original(self, factor)


@fault(
    id="fs-reduce-op-of-own-call-only",
    symptom='set_reduce_op_type("sum") on the root leaves its children at the average: layers train at two rates.',
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-06"],
    ranks="all",
)
def reduce_op_of_own_call_only(patch: Patch) -> None:
    @patch.around(
        f"{_OURS}.fully_shard.module:HSDPModule.set_reduce_op_type", parameters=("self", "reduce_op_type", "recurse")
    )
    def set_reduce_op_type(original: Any, self: Any, reduce_op_type: str, recurse: bool = True) -> None:
        patch.reached()
        original(self, reduce_op_type, recurse=False)
