"""Faults of clip_grad on torch_native: experts and pipeline stages in the global norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.clip_grad"


def _change_norm(patch: Patch, change: Callable[[Any, list[Any], float], Any]) -> None:
    """Has `change(norm, parameters, norm_type)` stand for the norm of each mesh's parameters, unless it is None."""

    @patch.around(f"{_OURS}:_norm", parameters=("parameters", "norm_type", "foreach"))
    def norm(original: Any, parameters: Any, norm_type: float, foreach: Any) -> Any:
        found = original(parameters, norm_type, foreach)
        changed = change(found, parameters, norm_type)
        if changed is None:
            return found
        patch.reached()
        return changed


def _dimensions(parameters: list[Any]) -> tuple[str, ...]:
    """Names of the dimensions of the parameters' mesh."""
    first = parameters[0]
    return first.device_mesh.mesh_dim_names if isinstance(first, DTensor) else ()


def _of_own_shards(parameters: list[Any], norm_type: float) -> Any:
    return get_total_norm([one.grad.to_local() for one in parameters], norm_type)


@fault(
    id="cg-own-experts-only",
    symptom="The norm holds the experts of this rank alone: ranks disagree on the factor and dense layers drift.",
    capability="clip_grad",
    layer="l2",
    must_fail=["CG-2-01"],
    ranks="all",
)
def own_experts_only(patch: Patch) -> None:
    _change_norm(
        patch,
        lambda norm, those, norm_type: _of_own_shards(those, norm_type) if "ep" in _dimensions(those) else None,
    )


@fault(
    id="cg-experts-counted-by-rank",
    symptom="The experts' share of the norm grows with the number of ranks that they are divided over.",
    capability="clip_grad",
    layer="l2",
    must_fail=["CG-2-01"],
    ranks="all",
)
def experts_counted_by_rank(patch: Patch) -> None:
    def change(norm: Any, those: list[Any], norm_type: float) -> Any:
        return norm * those[0].device_mesh.size() ** (1 / norm_type) if "ep" in _dimensions(those) else None

    _change_norm(patch, change)


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
