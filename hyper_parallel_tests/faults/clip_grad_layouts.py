"""Faults of clip_grad on torch_native: which shards, copies and experts make up the global norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.tensor import DTensor, Replicate
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
    id="cg-shards-not-joined",
    symptom="Every rank clips by the norm of what it holds: the more ranks, the less is clipped.",
    capability="clip_grad",
    layer="l2",
    must_fail=["CG-2-01"],
    ranks="all",
)
def shards_not_joined(patch: Patch) -> None:
    _change_norm(
        patch,
        lambda norm, those, norm_type: _of_own_shards(those, norm_type) if _dimensions(those) else None,
    )


@fault(
    id="cg-copies-counted-by-rank",
    symptom="The more replicas, the larger the norm in the log and the shorter the steps.",
    capability="clip_grad",
    layer="l2",
    must_fail=["CG-2-01"],
    ranks="all",
)
def copies_counted_by_rank(patch: Patch) -> None:
    def change(norm: Any, those: list[Any], norm_type: float) -> Any:
        if "replicate" not in _dimensions(those):
            return None
        copies = those[0].device_mesh.size(those[0].device_mesh.mesh_dim_names.index("replicate"))
        return norm * copies ** (1 / norm_type)

    _change_norm(patch, change)


@fault(
    id="cg-first-mesh-only",
    symptom="With parameters on two meshes the norm is that of one of them: the others' spikes pass.",
    capability="clip_grad",
    layer="l2",
    must_fail=["CG-2-01"],
    ranks="all",
)
def first_mesh_only(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_by_mesh", parameters=("parameters",))
    def by_mesh(original: Any, parameters: list[Any]) -> list[list[Any]]:
        parts = original(parameters)
        if len(parts) > 1:
            patch.reached()
        return parts[:1]


@fault(
    id="cg-each-mesh-by-its-own-norm",
    symptom="Experts and dense layers are clipped apart: their gradients' proportion changes from step to step.",
    capability="clip_grad",
    layer="l2",
    must_fail=["CG-2-01"],
    ranks="all",
)
def each_mesh_by_its_own_norm(patch: Patch) -> None:
    @patch.around(f"{_OURS}:clip_grad_norm_", parameters=("parameters",))
    def clip(original: Any, parameters: Any, *args: Any, **options: Any) -> Any:
        parts: dict[Any, list[Any]] = {}
        for one in parameters:
            parts.setdefault(getattr(one, "device_mesh", None), []).append(one)
        if len(parts) > 1:
            patch.reached()
        return get_total_norm([original(those, *args, **options) for those in parts.values()])


@fault(
    id="cg-tensor-parallel-ranks-apart",
    symptom="With tensor parallelism the norm holds one rank's part of each divided layer, whatever FSDP joins.",
    capability="clip_grad",
    layer="l2",
    must_fail=["CG-2-01"],
    ranks="all",
)
def tensor_parallel_ranks_apart(patch: Patch) -> None:
    def change(norm: Any, those: list[Any], norm_type: float) -> Any:
        if "tp" not in _dimensions(those):
            return None
        return get_total_norm([_joined_but_over_tp(one.grad).to_local() for one in those], norm_type)

    _change_norm(patch, change)


def _joined_but_over_tp(gradient: Any) -> Any:
    names, placements = gradient.device_mesh.mesh_dim_names, gradient.placements
    kept = [one if name == "tp" else Replicate() for name, one in zip(names, placements, strict=True)]
    return gradient.redistribute(placements=kept)


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
