"""Faults of fully_shard on torch_native: dtypes of parameters, inputs, outputs and gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"
_OURS = "hyper_parallel_tests.engines.torch_native.fully_shard"


def _change_policy(patch: Patch, change: Any) -> None:
    """Has `change(ours, fsdp)` give the fields of FSDP2's policy that come out wrong; none where it says nothing."""

    @patch.around(f"{_OURS}.policies:MixedPrecisionPolicy.to_fsdp", parameters=("self",))
    def to_fsdp(original: Any, self: Any) -> Any:
        policy = original(self)
        wrong = change(self, policy)
        if wrong:
            patch.reached()
        return replace(policy, **wrong)


@fault(
    id="fs-param-dtype-not-read",
    symptom="param_dtype is accepted and forward computes in fp32 all the same: no memory saved, no speed won.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-10", "FSDP-L1-11", "FSDP-L1-12"],
    ranks="all",
)
def param_dtype_not_read(patch: Patch) -> None:
    _change_policy(patch, lambda ours, _: {"param_dtype": None} if ours.param_dtype else {})


@fault(
    id="fs-reduce-dtype-not-read",
    symptom="Gradients are reduced in the dtype they were computed in, and small ones are rounded away.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-10", "FSDP-L1-13"],
    ranks="all",
)
def reduce_dtype_not_read(patch: Patch) -> None:
    _change_policy(patch, lambda _, fsdp: {"reduce_dtype": None} if fsdp.reduce_dtype else {})


@fault(
    id="fs-reduced-in-fp32-always",
    symptom="reduce_dtype bf16 saves nothing: gradients are sent in fp32.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-11"],
    ranks="all",
)
def reduced_in_fp32_always(patch: Patch) -> None:
    def change(_: Any, fsdp: Any) -> dict[str, Any]:
        return {"reduce_dtype": torch.float32} if fsdp.reduce_dtype not in (None, torch.float32) else {}

    _change_policy(patch, change)


@fault(
    id="fs-output-dtype-not-read",
    symptom="The loss is computed in bf16 although output_dtype asks for fp32 outputs.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-10"],
    ranks="all",
)
def output_dtype_not_read(patch: Patch) -> None:
    _change_policy(patch, lambda _, fsdp: {"output_dtype": None} if fsdp.output_dtype else {})


@fault(
    id="fs-inputs-cast-always",
    symptom="cast_forward_inputs=False is accepted and inputs lose their precision before the module sees them.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-12"],
    ranks="all",
)
def inputs_cast_always(patch: Patch) -> None:
    _change_policy(patch, lambda _, fsdp: {} if fsdp.cast_forward_inputs else {"cast_forward_inputs": True})


@fault(
    id="fs-main-grad-flag-not-read",
    symptom="apply_grad_on_fp32_main_grad is accepted and gradients are summed in fp16 over the ranks.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-13"],
    ranks="all",
)
def main_grad_flag_not_read(patch: Patch) -> None:
    def change(ours: Any, _: Any) -> dict[str, Any]:
        unread = ours.apply_grad_on_fp32_main_grad and ours.reduce_dtype is None
        return {"reduce_dtype": None} if unread else {}

    _change_policy(patch, change)


@fault(
    id="fs-held-back-gradients-pile-up-in-fp16",
    symptom="With gradient sync off, later micro-steps vanish beside the first one's larger gradients.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-13"],
)
def held_back_gradients_pile_up_in_fp16(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param:FSDPParam.to_accumulated_grad_if_needed", parameters=("self",))
    def keep(_original: Any, self: Any) -> None:
        patch.reached()


@fault(
    id="fs-reduced-gradients-rounded",
    symptom="Each reduction is right to fp16 and no further, so the main gradient drifts from the fp32 sum.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-13"],
)
def reduced_gradients_rounded(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param_group:foreach_reduce", parameters=("fsdp_params", "unsharded_grads"))
    def foreach_reduce(original: Any, fsdp_params: Any, *args: Any) -> Any:
        reduced = original(fsdp_params, *args)
        for parameter in fsdp_params:
            if parameter.param_dtype is not None:
                patch.reached()
                local = parameter.sharded_param.grad._local_tensor
                local.copy_(local.to(parameter.param_dtype))
        return reduced


@fault(
    id="fs-main-grad-rounded-to-stored-dtype",
    symptom="For parameters stored in bf16 apply_grad_on_fp32_main_grad is accepted, and gradients are bf16 as before.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-13"],
    ranks="all",
)
def main_grad_rounded_to_stored_dtype(patch: Patch) -> None:
    @patch.around(f"{_OURS}.wrap:_refuse_contradictions", parameters=("modules", "policy", "ignored", "replicated"))
    def accept(original: Any, modules: Any, policy: Any, ignored: Any, replicated: Any) -> None:
        stored = {parameter.dtype for module in modules for parameter in module.parameters()}
        if policy.apply_grad_on_fp32_main_grad and stored != {torch.float32}:
            patch.reached()
        original(modules, replace(policy, apply_grad_on_fp32_main_grad=False), ignored, replicated)
