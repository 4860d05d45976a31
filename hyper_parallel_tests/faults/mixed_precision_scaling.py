"""Faults of loss scaling on torch_native: overflow, and what becomes of the scale."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_SCALER = "hyper_parallel_tests.engines.torch_native.mixed_precision:ShardedGradScaler"


@fault(
    id="mp-overflow-known-to-one-rank",
    symptom="The rank whose shard overflows skips the step, the others take it: parameters no longer fit together.",
    capability="mixed_precision",
    layer="l2",
    must_fail=["MP-2-01"],
)
def overflow_known_to_one_rank(patch: Patch) -> None:
    @patch.around(f"{_SCALER}.unscale_", parameters=("self", "optimizer"))
    def unscale(original: Any, scaler: Any, optimizer: Any) -> None:
        original(scaler, optimizer)
        if not scaler.is_enabled():
            return
        grads = [one.grad for group in optimizer.param_groups for one in group["params"]]
        clean = all(getattr(grad, "_local_tensor", grad).isfinite().all() for grad in grads)
        for found in scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
            if clean and found:
                patch.reached()
                found.zero_()


@fault(
    id="mp-overflow-not-looked-for",
    symptom="One overflow turns the parameters into NaN, for good.",
    capability="mixed_precision",
    layer="l2",
    must_fail=["MP-2-01"],
    ranks="all",
)
def overflow_not_looked_for(patch: Patch) -> None:
    @patch.around(f"{_SCALER}._maybe_opt_step", parameters=("self", "optimizer", "optimizer_state"))
    def step(_: Any, scaler: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        if any(found for found in state["found_inf_per_device"].values()):
            patch.reached()
        return optimizer.step(*args, **kwargs)


@fault(
    id="mp-scale-does-not-back-off",
    symptom="After the first overflow no step is taken any more: the scale stays where it overflows.",
    capability="mixed_precision",
    layer="l2",
    must_fail=["MP-2-01"],
    ranks="all",
)
def scale_does_not_back_off(patch: Patch) -> None:
    @patch.around(f"{_SCALER}._amp_update_scale_cpu_", parameters=("self", "found_inf"))
    def update(original: Any, scaler: Any, found_inf: Any) -> None:
        if found_inf.item():
            patch.reached()
        else:
            original(scaler, found_inf)


@fault(
    id="mp-skipped-steps-count-as-growth",
    symptom="The scale grows too early after an overflow, so that every few steps are lost.",
    capability="mixed_precision",
    layer="l2",
    must_fail=["MP-2-01"],
    ranks="all",
)
def skipped_steps_count_as_growth(patch: Patch) -> None:
    @patch.around(f"{_SCALER}._amp_update_scale_cpu_", parameters=("self", "found_inf"))
    def update(original: Any, scaler: Any, found_inf: Any) -> None:
        original(scaler, found_inf)
        if found_inf.item():
            patch.reached()
            scaler._growth_tracker += 1


@fault(
    id="mp-gradients-left-scaled",
    symptom="Steps are as many times too long as the scale is large: the loss explodes at once.",
    capability="mixed_precision",
    layer="l2",
    must_fail=["MP-2-01"],
    ranks="all",
)
def gradients_left_scaled(patch: Patch) -> None:
    @patch.around(f"{_SCALER}._unscale_grads_", parameters=("self", "optimizer", "inv_scale", "found_inf"))
    def unscale(original: Any, scaler: Any, optimizer: Any, inv_scale: Any, *args: Any) -> Any:
        patch.reached()
        return original(scaler, optimizer, torch.ones_like(inv_scale), *args)


@fault(
    id="mp-skipped-step-zeroes-gradients-and-steps",
    symptom="On overflow the optimizer steps with zero gradients: momentum and weight decay move the parameters.",
    capability="mixed_precision",
    layer="l2",
    must_fail=["MP-2-01"],
    ranks="all",
)
def skipped_step_zeroes_gradients_and_steps(patch: Patch) -> None:
    @patch.around(f"{_SCALER}._maybe_opt_step", parameters=("self", "optimizer", "optimizer_state"))
    def step(_: Any, scaler: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        if any(found for found in state["found_inf_per_device"].values()):
            patch.reached()
            for group in optimizer.param_groups:
                for one in group["params"]:
                    one.grad.zero_()
        return optimizer.step(*args, **kwargs)
