"""Faults of activation checkpointing on torch_native: what regions do to training."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_TORCH = "torch.utils.checkpoint"


@fault(
    id="ac-reentrant-regions-drop-others",
    symptom="With dropout, training with reentrant recomputation goes another way than without, from the first step.",
    capability="activation_checkpoint",
    layer="l2",
    must_fail=["AC-2-01"],
    ranks="all",
)
def reentrant_regions_drop_others(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:CheckpointFunction.forward", parameters=("ctx", "run_function", "preserve_rng_state"))
    def forward(original: Any, ctx: Any, run_function: Any, preserve_rng_state: bool, *args: Any) -> Any:
        patch.reached()
        return original(ctx, run_function, False, *args)


@fault(
    id="ac-reentrant-input-gradient-doubled",
    symptom="Layers before a reentrant region learn twice as fast.",
    capability="activation_checkpoint",
    layer="l2",
    must_fail=["AC-2-01"],
    ranks="all",
)
def reentrant_input_gradient_doubled(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:CheckpointFunction.backward", parameters=("ctx",))
    def backward(original: Any, ctx: Any, *grads: Any) -> Any:
        patch.reached()
        return tuple(one if one is None else 2 * one for one in original(ctx, *grads))


@fault(
    id="ac-kept-outputs-rounded",
    symptom="Recomputation per operator trains a little worse than full recomputation.",
    capability="activation_checkpoint",
    layer="l2",
    must_fail=["AC-2-01"],
    ranks="all",
)
def kept_outputs_rounded(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:_VersionWrapper.get_val", parameters=("self", "allow_cache_entry_mutation"))
    def get(original: Any, self: Any, allow_cache_entry_mutation: bool) -> Any:
        patch.reached()
        value = original(self, allow_cache_entry_mutation)
        return value.bfloat16().to(value.dtype)
