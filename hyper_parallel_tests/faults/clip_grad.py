"""Faults of clip_grad on torch_native: the norm, the factor, and which gradients they are for."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.clip_grad"
_NORM = ("tensors", "norm_type", "error_if_nonfinite", "foreach")
_SCALE = ("parameters", "max_norm", "total_norm", "foreach")


def _factor(patch: Patch, factor: Any) -> None:
    """Has all gradients multiplied by `factor(norm, max_norm)`."""

    @patch.around(f"{_OURS}:clip_grads_with_norm_", parameters=_SCALE)
    def scale(_: Any, held: Any, max_norm: float, norm: Any, foreach: Any) -> None:
        for one in held:
            patch.reached()
            one.grad.mul_(factor(norm, max_norm))


@fault(
    id="cg-norms-of-parameters-added",
    symptom="The gradient norm in the log is several times too large, and training crawls: all steps are cut short.",
    capability="clip_grad",
    layer="l0",
    must_fail=["CG-0-01", "CG-1-01"],
    ranks="all",
)
def norms_of_parameters_added(patch: Patch) -> None:
    @patch.around(f"{_OURS}:get_total_norm", parameters=_NORM)
    def total(original: Any, tensors: Any, norm_type: float, *args: Any, **options: Any) -> Any:
        patch.reached()
        norms = [original([one], norm_type, *args, **options) for one in tensors]
        return sum(norms[1:], norms[0]) if norms else torch.tensor(0.0)


@fault(
    id="cg-norm-type-not-read",
    symptom="norm_type is accepted and gradients are clipped by the 2-norm all the same.",
    capability="clip_grad",
    layer="l0",
    must_fail=["CG-0-01", "CG-1-01"],
    ranks="all",
)
def norm_type_not_read(patch: Patch) -> None:
    @patch.around(f"{_OURS}:get_total_norm", parameters=_NORM)
    def total(original: Any, tensors: Any, norm_type: float, *args: Any, **options: Any) -> Any:
        patch.reached()
        return original(tensors, 2.0, *args, **options)


@fault(
    id="cg-small-gradients-scaled-up",
    symptom="Late in training, when gradients are small, steps become too long and the loss jumps.",
    capability="clip_grad",
    layer="l0",
    must_fail=["CG-0-01"],
)
def small_gradients_scaled_up(patch: Patch) -> None:
    _factor(patch, lambda norm, max_norm: max_norm / (norm + 1e-6))


@fault(
    id="cg-no-epsilon",
    symptom="A step whose gradients are all zero turns the parameters into NaN if the bound is zero too.",
    capability="clip_grad",
    layer="l0",
    must_fail=["CG-0-01"],
)
def no_epsilon(patch: Patch) -> None:
    _factor(patch, lambda norm, max_norm: (max_norm / norm).clamp(max=1.0))


@fault(
    id="cg-bound-of-zero-means-off",
    symptom="max_norm 0 does not stop an update but lets it through in full.",
    capability="clip_grad",
    layer="l0",
    must_fail=["CG-0-01"],
)
def bound_of_zero_means_off(patch: Patch) -> None:
    _factor(patch, lambda norm, max_norm: (max_norm / (norm + 1e-6)).clamp(max=1.0) if max_norm else 1.0)


@fault(
    id="cg-main-grad-not-read",
    symptom="With fp32 main gradients the norm in the log is that of stale gradients, and nothing is clipped.",
    capability="clip_grad",
    layer="l0",
    must_fail=["CG-0-01", "CG-1-01"],
    ranks="all",
)
def main_grad_not_read(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_gradient", parameters=("parameter",))
    def gradient(_: Any, parameter: Any) -> Any:
        if getattr(parameter, "main_grad", None) is not None:
            patch.reached()
        return parameter.grad


@fault(
    id="cg-norm-of-own-main-grads",
    symptom="With sharded main gradients each rank clips by the norm of its own parts: the factors differ.",
    capability="clip_grad",
    layer="l1",
    must_fail=["CG-1-01"],
    ranks="all",
)
def norm_of_own_main_grads(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_gradient", parameters=("parameter",))
    def gradient(original: Any, parameter: Any) -> Any:
        if getattr(parameter, "main_grad", None) is None:
            return original(parameter)
        patch.reached()
        return _local(parameter.main_grad)


@fault(
    id="cg-empty-main-grad-taken",
    symptom="Parameters that have a main_grad of None drop out of the norm and are never clipped.",
    capability="clip_grad",
    layer="l0",
    must_fail=["CG-0-01"],
)
def empty_main_grad_taken(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_gradient", parameters=("parameter",))
    def gradient(original: Any, parameter: Any) -> Any:
        if not hasattr(parameter, "main_grad"):
            return original(parameter)
        patch.reached()
        return parameter.main_grad


@fault(
    id="cg-norm-of-own-shards",
    symptom="Each rank clips by the norm of its own shards: the norms differ and so do the factors.",
    capability="clip_grad",
    layer="l1",
    must_fail=["CG-1-01"],
    ranks="all",
)
def norm_of_own_shards(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_norm", parameters=("parameters", "norm_type", "foreach"))
    def norm(original: Any, parameters: Any, norm_type: float, foreach: Any) -> Any:
        patch.reached()
        local = [_local(one.grad) for one in parameters if one.grad is not None]
        return torch.nn.utils.get_total_norm(local, norm_type, foreach=foreach)


def _local(tensor: Any) -> Any:
    return getattr(tensor, "_local_tensor", tensor)


@fault(
    id="cg-frozen-parameters-counted",
    symptom="After layers are frozen, their last gradients keep the norm up and the others' steps short.",
    capability="clip_grad",
    layer="l1",
    must_fail=["CG-1-01"],
    ranks="all",
)
def frozen_parameters_counted(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_tensors", parameters=("parameters",))
    def tensors(original: Any, parameters: Any) -> Any:
        found = original(parameters)
        if any(not one.requires_grad for one in found):
            patch.reached()
        return [one.requires_grad_() for one in found]


@fault(
    id="cg-foreach-leaves-one-out",
    symptom="With foreach the last gradient of the list is not scaled: one bias trains faster than the rest.",
    capability="clip_grad",
    layer="l1",
    must_fail=["CG-1-01"],
    ranks="all",
)
def foreach_leaves_one_out(patch: Patch) -> None:
    @patch.around(f"{_OURS}:clip_grads_with_norm_", parameters=_SCALE)
    def scale(original: Any, held: Any, max_norm: float, norm: Any, foreach: Any) -> None:
        if foreach:
            patch.reached()
        original(held[:-1] if foreach else held, max_norm, norm, foreach)


@fault(
    id="cg-rank-without-gradients-stays-away",
    symptom="Training hangs when one rank has no gradient, as happens to an expert that no token reached.",
    capability="clip_grad",
    layer="l1",
    must_fail=["CG-1-01"],
    watchdog=5,
)
def rank_without_gradients_stays_away(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_norm", parameters=("parameters", "norm_type", "foreach"))
    def norm(original: Any, parameters: Any, norm_type: float, foreach: Any) -> Any:
        if any(one.grad is not None for one in parameters):
            return original(parameters, norm_type, foreach)
        patch.reached()
        return torch.tensor(0.0)


@fault(
    id="cg-scales-what-was-cloned",
    symptom="The norm in the log is right, but the step takes the gradients as they were: loss spikes are back.",
    capability="clip_grad",
    layer="l0",
    must_fail=["CG-0-01", "CG-1-01"],
    ranks="all",
)
def scales_what_was_cloned(patch: Patch) -> None:
    @patch.around(f"{_OURS}:clip_grads_with_norm_", parameters=_SCALE)
    def scale(original: Any, held: Any, *args: Any) -> None:
        patch.reached()
        original([one._replace(grad=one.grad.clone()) for one in held], *args)


@fault(
    id="cg-last-reduction-comes-late",
    symptom="One layer's gradient arrives after clipping: it is missing in the norm and enters the step unclipped.",
    capability="clip_grad",
    layer="l1",
    must_fail=["CG-1-01"],
    ranks="all",
)
def last_reduction_comes_late(patch: Patch) -> None:
    @patch.around(f"{_OURS}:clip_grad_norm_", parameters=("parameters", "max_norm"))
    def clip(original: Any, parameters: Any, *args: Any, **options: Any) -> Any:
        those = list(parameters)
        late, those[0].grad = those[0].grad, None
        patch.reached()
        norm = original(those, *args, **options)
        those[0].grad = late
        return norm
