"""Faults of shard arithmetic, placements, layouts, plans and submeshes: what layer 0 of dtensor must catch."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from torch.distributed.tensor import Replicate, Shard

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native"
_PLACEMENTS = "torch.distributed.tensor.placement_types"
_TENSOR = ("tensor", "device_mesh", "placements")


@fault(
    id="dt-remainder-goes-to-the-first-ranks",
    symptom="Uneven shards are cut as numpy does: a checkpoint's shards no longer fit the parameters.",
    capability="dtensor",
    layer="l0",
    must_fail=["DT-0-01"],
)
def remainder_goes_to_the_first_ranks(patch: Patch) -> None:
    @patch.around(
        f"{_PLACEMENTS}:Shard.local_shard_size_and_offset", parameters=("curr_local_size", "num_chunks", "rank")
    )
    def size_and_offset(_: Any, curr_local_size: int, num_chunks: int, rank: int) -> tuple[int, int]:
        size, rest = divmod(curr_local_size, num_chunks)
        if rest:
            patch.reached()
        return size + (rank < rest), rank * size + min(rank, rest)


@fault(
    id="dt-empty-shard-lies-at-the-start",
    symptom="Ranks with empty shards overwrite the first rows when a checkpoint is put together.",
    capability="dtensor",
    layer="l0",
    must_fail=["DT-0-01"],
)
def empty_shard_lies_at_the_start(patch: Patch) -> None:
    @patch.around(
        f"{_OURS}.dtensor:compute_local_shape_and_global_offset",
        parameters=("global_shape", "device_mesh", "placements"),
    )
    def compute(original: Any, *args: Any) -> Any:
        shape, offset = original(*args)
        if 0 in shape:
            patch.reached()
        return shape, tuple(0 if size == 0 else start for size, start in zip(shape, offset, strict=True))


@fault(
    id="dt-coordinate-of-the-other-mesh-dimension",
    symptom="On a mesh of two dimensions parameters are cut along the wrong one: each weight is a mixture of two.",
    capability="dtensor",
    layer="l0",
    must_fail=["DT-0-02"],
)
def coordinate_of_the_other_mesh_dimension(patch: Patch) -> None:
    @patch.around(f"{_PLACEMENTS}:Shard._make_shard_tensor", parameters=("cls", "dim", "tensor", "mesh", "mesh_dim"))
    def make(original: Any, cls: Any, dim: int, tensor: Any, mesh: Any, mesh_dim: int, *args: Any) -> Any:
        if mesh.ndim == 2:
            patch.reached()
            mesh_dim = 1 - mesh_dim
        return original(cls, dim, tensor, mesh, mesh_dim, *args)


@fault(
    id="dt-tensor-map-counts-from-the-outermost",
    symptom="A layout that came from a tensor map shards over data parallel ranks where tensor parallel was meant.",
    capability="dtensor",
    layer="l0",
    must_fail=["DT-0-03"],
)
def tensor_map_counts_from_the_outermost(patch: Patch) -> None:
    def outermost(original: property) -> property:
        def tensor_map(self: Any) -> Any:
            patch.reached()
            found = original.fget(self)
            return None if found is None else tuple(_flipped(one, len(self.mesh_shape) - 1) for one in found)

        return property(tensor_map)

    patch.replace(f"{_OURS}.layout:_Layout.tensor_map", outermost)


def _flipped(axis: Any, last: int) -> Any:
    if isinstance(axis, tuple):
        return tuple(last - one for one in axis)
    return axis if axis < 0 else last - axis


@fault(
    id="dt-layout-forgets-the-order-of-division",
    symptom="Weights sharded over tensor parallel first and FSDP second come back with their rows permuted.",
    capability="dtensor",
    layer="l0",
    must_fail=["DT-0-03"],
)
def layout_forgets_the_order_of_division(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layout:layout_from_placements", parameters=("device_mesh", "placements", "ndim"))
    def layout_from_placements(original: Any, *args: Any) -> Any:
        found = original(*args)
        in_mesh_order = tuple(tuple(sorted(order)) for order in found.axes)
        if in_mesh_order != found.axes:
            patch.reached()
        return dataclasses.replace(found, axes=in_mesh_order)


@fault(
    id="dt-layouts-equal-whatever-their-ranks",
    symptom="The second pipeline stage finds the first one's layout in a cache and communicates with its ranks.",
    capability="dtensor",
    layer="l0",
    must_fail=["DT-0-03"],
)
def layouts_equal_whatever_their_ranks(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layout:_Layout.__eq__", parameters=("self", "other"))
    def equal(original: Any, self: Any, other: Any) -> bool:
        patch.reached()
        names = ("mesh_shape", "alias_name", "partial", "axes")
        return all(getattr(self, name) == getattr(other, name) for name in names)


@fault(
    id="dt-replicas-counted-without-second-axes",
    symptom="Gradients are too small by a factor where two mesh axes divide one dimension.",
    capability="dtensor",
    layer="l0",
    must_fail=["DT-0-03"],
)
def replicas_counted_without_second_axes(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layout:_Layout.repeat_num", parameters=("self",))
    def repeat_num(original: Any, self: Any) -> int:
        found = original(self)
        if found < 0 or all(len(order) < 2 for order in self.axes):
            return found
        patch.reached()
        return math.prod(self.mesh_shape) // math.prod(self.mesh_shape[order[0]] for order in self.axes if order)


@fault(
    id="dt-redistribution-goes-by-the-whole",
    symptom="Memory peaks at each change of placement: every tensor is gathered in full, changed or not.",
    capability="dtensor",
    layer="l0",
    must_fail=["DT-0-04"],
)
def redistribution_goes_by_the_whole(patch: Patch) -> None:
    @patch.around(f"{_OURS}.dtensor:redistribute", parameters=_TENSOR)
    def redistribute(original: Any, tensor: Any, device_mesh: Any, placements: Any) -> Any:
        patch.reached()
        whole = original(tensor, device_mesh, [Replicate()] * device_mesh.ndim)
        return original(whole, device_mesh, placements) if not any(one.is_partial() for one in placements) else tensor


@fault(
    id="dt-plan-found-by-the-first-mesh-dimension",
    symptom="A change of placement along the second mesh dimension does nothing, and the next matmul is wrong.",
    capability="dtensor",
    layer="l0",
    must_fail=["DT-0-04"],
)
def plan_found_by_the_first_mesh_dimension(patch: Patch) -> None:
    @patch.around("torch.distributed.tensor._redistribute:redistribute_local_tensor")
    def redistribute(
        original: Any, local_tensor: Any, current_spec: Any, target_spec: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if (
            current_spec.placements[0] == target_spec.placements[0]
            and current_spec.placements != target_spec.placements
        ):
            patch.reached()
            return local_tensor
        return original(local_tensor, current_spec, target_spec, *args, **kwargs)


@fault(
    id="dt-dimension-out-of-range-wraps-around",
    symptom="A typing error in a shard plan divides another dimension, and nobody is told.",
    capability="dtensor",
    layer="l0",
    must_fail=["DT-0-05"],
)
def dimension_out_of_range_wraps_around(patch: Patch) -> None:
    @patch.around(f"{_OURS}.dtensor:distribute_tensor", parameters=_TENSOR)
    def distribute_tensor(original: Any, tensor: Any, device_mesh: Any, placements: Any, **options: Any) -> Any:
        wrapped = [
            Shard(one.dim % tensor.ndim) if isinstance(one, Shard) and one.dim >= tensor.ndim > 0 else one
            for one in placements
        ]
        if wrapped != list(placements):
            patch.reached()
        return original(tensor, device_mesh, wrapped, **options)


@fault(
    id="dt-surplus-placements-dropped",
    symptom="A plan for three mesh dimensions runs on two, and the third is silently not applied.",
    capability="dtensor",
    layer="l0",
    must_fail=["DT-0-05"],
)
def surplus_placements_dropped(patch: Patch) -> None:
    @patch.around(f"{_OURS}.dtensor:distribute_tensor", parameters=_TENSOR)
    def distribute_tensor(original: Any, tensor: Any, device_mesh: Any, placements: Any, **options: Any) -> Any:
        if len(placements) > device_mesh.ndim:
            patch.reached()
        return original(tensor, device_mesh, list(placements)[: device_mesh.ndim], **options)


@fault(
    id="dt-slice-takes-the-leading-dimensions",
    symptom='mesh["dp", "tp"] of a mesh with pipeline stages communicates across stages.',
    capability="dtensor",
    layer="l0",
    must_fail=["DT-0-06"],
)
def slice_takes_the_leading_dimensions(patch: Patch) -> None:
    @patch.around("torch.distributed.device_mesh:DeviceMesh.__getitem__", parameters=("self", "mesh_dim_names"))
    def slice_of(original: Any, self: Any, mesh_dim_names: Any) -> Any:
        if isinstance(mesh_dim_names, str) or len(mesh_dim_names) == self.ndim:
            return original(self, mesh_dim_names)
        patch.reached()
        return original(self, self.mesh_dim_names[: len(mesh_dim_names)])


@fault(
    id="dt-mesh-of-groups-loses-its-names",
    symptom="A mesh that a framework hands over by its groups cannot be sliced by name.",
    capability="dtensor",
    layer="l0",
    must_fail=["DT-0-06"],
)
def mesh_of_groups_loses_its_names(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mesh:mesh_from_group", parameters=("group", "device_type", "mesh"))
    def mesh_from_group(original: Any, group: Any, device_type: str, mesh: Any = None, **_: Any) -> Any:
        patch.reached()
        names = ("dim_0", "dim_1")[: 1 if mesh is None else mesh.ndim]
        return original(group, device_type, mesh, mesh_dim_names=names)
