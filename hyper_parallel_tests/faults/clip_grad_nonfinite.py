"""Faults of clip_grad on torch_native: norms that are NaN or infinite."""

from __future__ import annotations

import math
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.clip_grad"
_NORM = ("parameters", "norm_type", "foreach")
_CLIP = ("parameters", "max_norm", "norm_type", "error_if_nonfinite", "foreach")


@fault(
    id="cg-nan-hidden",
    symptom="A NaN in one gradient goes unnoticed: the norm looks sound and the step is taken.",
    capability="clip_grad",
    layer="l1",
    must_fail=["CG-1-01"],
    ranks="all",
)
def nan_hidden(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_norm", parameters=_NORM)
    def norm(original: Any, parameters: Any, norm_type: float, foreach: Any) -> Any:
        found = original(parameters, norm_type, foreach)
        if not math.isfinite(found):
            patch.reached()
        return found.nan_to_num(nan=0.0, posinf=0.0)


@fault(
    id="cg-nan-hidden-where-it-is-not",
    symptom="One rank sees a NaN and skips the step, the others do not and take it: parameters drift apart.",
    capability="clip_grad",
    layer="l1",
    must_fail=["CG-1-01"],
)
def nan_hidden_where_it_is_not(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_norm", parameters=_NORM)
    def norm(original: Any, parameters: Any, norm_type: float, foreach: Any) -> Any:
        found = original(parameters, norm_type, foreach)
        guilty = any(not one.grad.to_local().isfinite().all() for one in parameters)
        if guilty or math.isfinite(found):
            return found
        patch.reached()
        return found.new_ones(())


@fault(
    id="cg-error-not-raised",
    symptom="error_if_nonfinite is accepted and nothing is raised.",
    capability="clip_grad",
    layer="l1",
    must_fail=["CG-1-01"],
    ranks="all",
)
def error_not_raised(patch: Patch) -> None:
    @patch.around(f"{_OURS}:clip_grad_norm_", parameters=_CLIP)
    def clip(
        original: Any, parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Any:
        if error_if_nonfinite:
            patch.reached()
        return original(parameters, max_norm, norm_type)


@fault(
    id="cg-error-after-scaling",
    symptom="error_if_nonfinite raises too late: whoever catches it goes on with zeroed gradients.",
    capability="clip_grad",
    layer="l1",
    must_fail=["CG-1-01"],
    ranks="all",
)
def error_after_scaling(patch: Patch) -> None:
    @patch.around(f"{_OURS}:clip_grad_norm_", parameters=_CLIP)
    def clip(
        original: Any, parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Any:
        those = list(parameters)
        if not error_if_nonfinite:
            return original(those, max_norm, norm_type)
        patch.reached()
        norm = original(those, max_norm, norm_type)
        if not math.isfinite(norm):
            raise RuntimeError("error_if_nonfinite")
        return norm
