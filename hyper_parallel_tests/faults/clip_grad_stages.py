"""Faults of clip_grad on torch_native: pipeline stages in the global norm."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.clip_grad"


@fault(
    id="cg-stages-apart",
    symptom="Each pipeline stage clips by its own norm: the update is no longer along the gradient.",
    capability="clip_grad",
    layer="l2",
    must_fail=["CG-2-01"],
    ranks="all",
)
def stages_apart(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_of_all_stages", parameters=("norm", "pp_mesh"))
    def own(_: Any, norm: Any, pp_mesh: Any) -> Any:
        patch.reached()
        return [norm]


@fault(
    id="cg-stage-errs-alone",
    symptom="A NaN in one pipeline stage stops that stage with an error while the others wait for it, or step.",
    capability="clip_grad",
    layer="l2",
    must_fail=["CG-2-01"],
)
def stage_errs_alone(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_of_all_stages", parameters=("norm", "pp_mesh"))
    def hidden(original: Any, norm: Any, pp_mesh: Any) -> Any:
        norms = original(norm, pp_mesh)
        if any(not one.isfinite() for one in norms) and norm.isfinite():
            patch.reached()
            return [one.nan_to_num(0.0) for one in norms]
        return norms
