"""Faults of mixed precision on torch_native: autocast around and inside wrapped modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState"
_OURS = "hyper_parallel_tests.engines.torch_native.fully_shard"


@fault(
    id="mp-autocast-ends-at-the-module",
    symptom="Autocast around a wrapped module has no effect inside: it computes in the parameters' dtype.",
    capability="mixed_precision",
    layer="l1",
    must_fail=["MP-1-02"],
    ranks="all",
)
def autocast_ends_at_the_module(patch: Patch) -> None:
    @patch.around(f"{_OURS}.wrap:adopt", parameters=("module",))
    def adopt(original: Any, module: Any) -> None:
        forward = module.forward

        def without_autocast(*args: Any, **kwargs: Any) -> Any:
            if torch.is_autocast_enabled("cpu"):
                patch.reached()
            with torch.autocast("cpu", enabled=False):
                return forward(*args, **kwargs)

        module.forward = without_autocast
        original(module)


@fault(
    id="mp-autocast-forced-inside",
    symptom="What a module computes outside of autocast on purpose, such as a softmax, is in bf16 all the same.",
    capability="mixed_precision",
    layer="l1",
    must_fail=["MP-1-02"],
    ranks="all",
)
def autocast_forced_inside(patch: Patch) -> None:
    @patch.around("torch.nn.functional:linear")
    def linear(original: Any, *args: Any) -> Any:
        patch.reached()
        with torch.autocast("cpu", torch.bfloat16):
            return original(*args)


@fault(
    id="mp-autocast-takes-the-policys-place",
    symptom="Under autocast a wrapped module leaves its inputs and outputs alone: the loss comes out in bf16.",
    capability="mixed_precision",
    layer="l1",
    must_fail=["MP-1-02"],
    ranks="all",
)
def autocast_takes_the_policys_place(patch: Patch) -> None:
    @patch.around(f"{_STATE}._cast_output_dtype", parameters=("self", "output"))
    def cast(original: Any, state: Any, output: Any) -> Any:
        if output.dtype != torch.bfloat16:
            return original(state, output)
        patch.reached()
        return output


@fault(
    id="mp-gathered-in-autocasts-dtype",
    symptom="With autocast on, parameters that were to be fp32 are gathered in bf16, and reduced so.",
    capability="mixed_precision",
    layer="l1",
    must_fail=["MP-1-02"],
    ranks="all",
)
def gathered_in_autocasts_dtype(patch: Patch) -> None:
    @patch.around(f"{_OURS}.policies:MixedPrecisionPolicy.to_fsdp", parameters=("self",))
    def to_fsdp(original: Any, policy: Any) -> Any:
        patch.reached()
        return replace(original(policy), param_dtype=torch.bfloat16)


@fault(
    id="mp-autocast-keeps-old-weights",
    symptom="After an update autocast goes on with its copies of the weights from before: training stands still.",
    capability="mixed_precision",
    layer="l1",
    must_fail=["MP-1-02"],
    ranks="all",
)
def autocast_keeps_old_weights(patch: Patch) -> None:
    patch.replace("torch:clear_autocast_cache", lambda _: lambda: patch.reached())
