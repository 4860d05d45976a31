"""Faults of mixed precision on torch_native: which dtype a policy's field becomes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"
_OURS = "hyper_parallel_tests.engines.torch_native.fully_shard"


def _change_policy(patch: Patch, **fields: Any) -> None:
    """Has FSDP2 get policies with these fields, each a value or a function of the policy."""

    @patch.around(f"{_OURS}.policies:MixedPrecisionPolicy.to_fsdp", parameters=("self",))
    def to_fsdp(original: Any, policy: Any) -> Any:
        found = original(policy)
        changed = replace(found, **{name: new(found) if callable(new) else new for name, new in fields.items()})
        if changed != found:
            patch.reached()
        return changed


@fault(
    id="mp-param-dtype-not-read",
    symptom="param_dtype is accepted and the model computes in fp32: no memory saved, no speed gained.",
    capability="mixed_precision",
    layer="l0",
    must_fail=["MP-0-01", "MP-1-01", "MP-2-01"],
    ranks="all",
)
def param_dtype_not_read(patch: Patch) -> None:
    _change_policy(patch, param_dtype=None)


@fault(
    id="mp-reduce-dtype-not-read",
    symptom="Gradients are summed in bf16 although fp32 was asked for: small contributions vanish on many ranks.",
    capability="mixed_precision",
    layer="l0",
    must_fail=["MP-0-01", "MP-1-01", "MP-2-01"],
    ranks="all",
)
def reduce_dtype_not_read(patch: Patch) -> None:
    _change_policy(patch, reduce_dtype=lambda policy: policy.param_dtype)


@fault(
    id="mp-output-dtype-not-read",
    symptom="Outputs leave in the computing dtype: the loss is rounded to bf16.",
    capability="mixed_precision",
    layer="l0",
    must_fail=["MP-0-01", "MP-1-01"],
    ranks="all",
)
def output_dtype_not_read(patch: Patch) -> None:
    _change_policy(patch, output_dtype=None)


@fault(
    id="mp-inputs-always-cast",
    symptom="cast_forward_inputs=False is ignored: positions and masks in fp32 arrive rounded.",
    capability="mixed_precision",
    layer="l0",
    must_fail=["MP-0-01"],
)
def inputs_always_cast(patch: Patch) -> None:
    _change_policy(patch, cast_forward_inputs=True)


@fault(
    id="mp-main-grad-not-read",
    symptom="The fp32 main gradient is fed from reductions in bf16.",
    capability="mixed_precision",
    layer="l0",
    must_fail=["MP-0-01", "MP-2-01"],
    ranks="all",
)
def main_grad_not_read(patch: Patch) -> None:
    @patch.around(f"{_OURS}.policies:MixedPrecisionPolicy.to_fsdp", parameters=("self",))
    def to_fsdp(original: Any, policy: Any) -> Any:
        if policy.apply_grad_on_fp32_main_grad:
            patch.reached()
        return replace(original(policy), reduce_dtype=policy.reduce_dtype)


@fault(
    id="mp-contradiction-accepted",
    symptom="A main gradient of bf16 reductions is accepted and rounds as if it were none.",
    capability="mixed_precision",
    layer="l0",
    must_fail=["MP-0-01"],
)
def contradiction_accepted(patch: Patch) -> None:
    @patch.around(f"{_OURS}.policies:MixedPrecisionPolicy.__post_init__", parameters=("self",))
    def check(_: Any, policy: Any) -> None:
        if policy.apply_grad_on_fp32_main_grad and policy.reduce_dtype not in (None, torch.float32):
            patch.reached()


@fault(
    id="mp-main-grad-of-low-parameters-accepted",
    symptom="A main gradient is asked for, but parameters are stored in bf16 and every step's gradient is rounded.",
    capability="mixed_precision",
    layer="l0",
    must_fail=["MP-0-01"],
)
def main_grad_of_low_parameters_accepted(patch: Patch) -> None:
    @patch.around(f"{_OURS}.wrap:_refuse_contradictions", parameters=("modules", "policy"))
    def refuse(original: Any, modules: Any, policy: Any, *args: Any) -> None:
        if policy.apply_grad_on_fp32_main_grad:
            patch.reached()
        original(modules, replace(policy, apply_grad_on_fp32_main_grad=False), *args)


@fault(
    id="mp-shards-stored-low",
    symptom="Small updates vanish: the fp32 parameters that the optimizer owns are kept in bf16.",
    capability="mixed_precision",
    layer="l0",
    must_fail=["MP-0-01", "MP-1-01", "MP-2-01"],
    ranks="all",
)
def shards_stored_low(patch: Patch) -> None:
    @patch.around(f"{_OURS}.wrap:fsdp.fully_shard", parameters=("module",))
    def fully_shard(original: Any, module: Any, *, mp_policy: Any, **options: Any) -> Any:
        if mp_policy.param_dtype is not None:
            patch.reached()
            for one in module if isinstance(module, list) else [module]:
                one.to(mp_policy.param_dtype)
        return original(module, mp_policy=mp_policy, **options)


@fault(
    id="mp-children-go-by-the-roots-policy",
    symptom="A layer that was to stay in fp32, such as a norm or a router, computes in the root's bf16.",
    capability="mixed_precision",
    layer="l1",
    must_fail=["MP-1-01"],
    ranks="all",
)
def children_go_by_the_roots_policy(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_state:FSDPState._init_shared_state", parameters=("self",))
    def share(original: Any, root: Any) -> None:
        original(root)
        for state in root._state_ctx.all_states:
            if state._mp_policy != root._mp_policy:
                patch.reached()
            state._mp_policy = root._mp_policy
            for group in state._fsdp_param_groups:
                group.mp_policy = root._mp_policy
                for parameter in group.fsdp_params:
                    parameter.init_dtype_attrs(root._mp_policy)


@fault(
    id="mp-integers-cast",
    symptom="Token ids above 256 become others: the model reads the wrong embeddings.",
    capability="mixed_precision",
    layer="l1",
    must_fail=["MP-1-01"],
    ranks="all",
)
def integers_cast(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_state:_cast_fp_tensor", parameters=("dtype", "x"))
    def cast(original: Any, dtype: torch.dtype, x: Any) -> Any:
        if isinstance(x, torch.Tensor) and not x.is_floating_point():
            patch.reached()
            return x.to(dtype).to(x.dtype)
        return original(dtype, x)


@fault(
    id="mp-keyword-inputs-not-cast",
    symptom="Inputs by keyword meet parameters of another dtype inside the module.",
    capability="mixed_precision",
    layer="l1",
    must_fail=["MP-1-01"],
    ranks="all",
)
def keyword_inputs_not_cast(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_state:FSDPState._cast_forward_inputs", parameters=("self", "args", "kwargs"))
    def cast(original: Any, state: Any, args: Any, kwargs: Any) -> Any:
        if kwargs:
            patch.reached()
        return original(state, args, {})[0], kwargs


@fault(
    id="mp-gradients-rounded-before-the-sum",
    symptom="The reduction is in fp32, but each rank rounds its gradients to 3 digits before it.",
    capability="mixed_precision",
    layer="l2",
    must_fail=["MP-2-01"],
    ranks="all",
)
def gradients_rounded_before_the_sum(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param_group:foreach_reduce", parameters=("fsdp_params", "unsharded_grads"))
    def foreach_reduce(original: Any, fsdp_params: Any, unsharded_grads: Any, *args: Any) -> Any:
        patch.reached()
        for one in unsharded_grads:
            one.copy_(one.to(torch.float8_e5m2).to(one.dtype))
        return original(fsdp_params, unsharded_grads, *args)


@fault(
    id="mp-inputs-stay-fp32",
    symptom="Inputs are not cast, so that mixed operands raise, or promote everything back to fp32.",
    capability="mixed_precision",
    layer="l0",
    must_fail=["MP-0-01"],
)
def inputs_stay_fp32(patch: Patch) -> None:
    _change_policy(patch, cast_forward_inputs=False)
