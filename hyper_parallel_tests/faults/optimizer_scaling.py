"""Faults of the gradient scaling factor on torch_native, as clipping and the optimizer see it."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_CLIP = "hyper_parallel_tests.engines.torch_native.clip_grad:clip_grad_norm_"
_FACTOR = "hyper_parallel_tests.engines.torch_native.fully_shard.module:HSDPModule.set_gradient_scaling_factor"


@fault(
    id="op-gradient-factor-after-the-norm",
    symptom="Gradients are clipped by a norm that the scaling factor is not in.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
    ranks="all",
)
def gradient_factor_after_the_norm(patch: Patch) -> None:
    factors: list[float] = []
    patch.replace(_FACTOR, lambda _: lambda self, factor: factors.append(factor), parameters=("self", "factor"))

    @patch.around(_CLIP, parameters=("parameters", "max_norm"))
    def clip(original: Any, parameters: Any, max_norm: float, *args: Any, **options: Any) -> Any:
        parameters = list(parameters)
        norm = original(parameters, max_norm, *args, **options)
        patch.reached()
        for one in parameters:
            if one.grad is not None:
                one.grad.mul_(factors[-1])
        return norm


@fault(
    id="op-gradient-factor-not-applied",
    symptom="Setting a gradient scaling factor changes nothing.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
    ranks="all",
)
def gradient_factor_not_applied(patch: Patch) -> None:
    patch.replace(_FACTOR, lambda _: lambda self, factor: patch.reached(), parameters=("self", "factor"))
