"""Faults of fully_shard on torch_native in training: accumulation, frozen parameters, clipping, changing lengths."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"
_OURS = "hyper_parallel_tests.engines.torch_native"


@fault(
    id="fs-micro-steps-forgotten",
    symptom="Accumulating trains on the last micro-batch alone: what was not reduced is thrown away.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FSDP-L2-01"],
    ranks="all",
)
def micro_steps_forgotten(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param_group:FSDPParamGroup.post_backward", parameters=("self", "unused"))
    def post_backward(original: Any, self: Any, *unused: Any) -> None:
        original(self, *unused)
        if not self.reduce_grads:
            patch.reached()
            for parameter in self.fsdp_params:
                parameter._unsharded_param.grad = None


@fault(
    id="fs-micro-steps-synchronise",
    symptom="set_requires_gradient_sync(False) saves nothing: every micro-step reduces its gradients.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FSDP-L2-01"],
    ranks="all",
)
def micro_steps_synchronise(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param_group:FSDPParamGroup.post_backward", parameters=("self", "unused"))
    def post_backward(original: Any, self: Any, *unused: Any) -> None:
        if not self.reduce_grads:
            patch.reached()
            self.reduce_grads = True
        original(self, *unused)


@fault(
    id="fs-frozen-parameters-reduced",
    symptom="Frozen parameters get gradients of zeros, cost a reduction each step, and decay under AdamW.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FSDP-L2-02"],
    ranks="all",
)
def frozen_parameters_reduced(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param_group:FSDPParamGroup.post_backward", parameters=("self", "unused"))
    def post_backward(original: Any, self: Any, *unused: Any) -> None:
        for parameter in self.fsdp_params:
            if parameter.sharded_param.requires_grad or not hasattr(parameter, "_unsharded_param"):
                continue
            patch.reached()
            parameter.unsharded_param.grad = torch.zeros_like(parameter.unsharded_param)
        original(self, *unused)


@fault(
    id="fs-clipped-by-own-norm",
    symptom="Clipping scales each rank's shards by another factor, that of the rank's own norm.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FSDP-L2-07"],
    ranks="all",
)
def clipped_by_own_norm(patch: Patch) -> None:
    @patch.around(f"{_OURS}.clip_grad:get_total_norm", parameters=("tensors",))
    def get_total_norm(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        local = [one.to_local() if hasattr(one, "to_local") else one for one in tensors]
        if any(mine is not one for mine, one in zip(local, tensors, strict=True)):
            patch.reached()
        return original(local, *args, **kwargs)


@fault(
    id="fs-new-length-computes-with-old-parameters",
    symptom="Whenever the sequence length changes, a step computes with the parameters that were gathered first.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FSDP-L2-08"],
    ranks="all",
)
def new_length_computes_with_old_parameters(patch: Patch) -> None:
    lengths: list[int] = []
    first: dict[Any, torch.Tensor] = {}

    @patch.around(
        f"{_FSDP}._fsdp_param_group:FSDPParamGroup.pre_forward", parameters=("self", "module", "args", "kwargs")
    )
    def pre_forward(original: Any, self: Any, module: Any, args: Any, kwargs: Any) -> Any:
        lengths.append(args[0].shape[1])
        return original(self, module, args, kwargs)

    @patch.around(
        f"{_FSDP}._fsdp_param_group:foreach_all_gather_copy_out",
        parameters=("all_gather_result", "fsdp_params", "group"),
    )
    def copy_out(original: Any, all_gather_result: Any, fsdp_params: Any, group: Any) -> None:
        original(all_gather_result, fsdp_params, group)
        for parameter in fsdp_params:
            (output,) = parameter.all_gather_outputs
            first.setdefault(parameter, output.detach().clone())
            if lengths[-1] != lengths[0]:
                patch.reached()
                output.data.copy_(first[parameter])


@fault(
    id="fs-new-length-not-gathered-on-one-rank",
    symptom="Training hangs when the sequence length changes: one rank leaves out a gather that the others wait in.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FSDP-L2-08"],
    applied_on=[1],
    watchdog=10,
)
def new_length_not_gathered_on_one_rank(patch: Patch) -> None:
    lengths: list[int] = []

    @patch.around(
        f"{_FSDP}._fsdp_param_group:FSDPParamGroup.pre_forward", parameters=("self", "module", "args", "kwargs")
    )
    def pre_forward(original: Any, self: Any, module: Any, args: Any, kwargs: Any) -> Any:
        lengths.append(args[0].shape[1])
        return original(self, module, args, kwargs)

    @patch.around(
        f"{_FSDP}._fsdp_collectives:DefaultAllGather.__call__",
        parameters=("self", "output_tensor", "input_tensor", "group", "async_op"),
    )
    def all_gather(
        original: Any, self: Any, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False
    ) -> Any:
        if len(set(lengths)) > 1:
            patch.reached()
            return None
        return original(self, output_tensor, input_tensor, group, async_op)
