"""Faults of rank arithmetic, degrees and the choice of a backend: what layer 0 of collectives must catch."""

from __future__ import annotations

import math
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_DEVICE_MESH = "torch.distributed.device_mesh"
_OURS = "hyper_parallel_tests.engines.torch_native"


@fault(
    id="col-mesh-is-column-major",
    symptom="Tensor parallel groups span hosts and data parallel groups do not: a tenth of the speed.",
    capability="collectives",
    layer="l0",
    must_fail=["COL-0-01"],
)
def mesh_is_column_major(patch: Patch) -> None:
    @patch.around(f"{_DEVICE_MESH}:_MeshLayout.from_sizes_strides", parameters=("cls", "sizes", "strides"))
    def from_sizes_strides(original: Any, cls: Any, sizes: tuple[int, ...], strides: Any = None) -> Any:
        if strides is None and len(sizes) > 1:
            patch.reached()
            strides = tuple(math.prod(sizes[:dim]) for dim in range(len(sizes)))
        return original(cls, sizes, strides)


@fault(
    id="col-local-rank-of-the-first-dimension",
    symptom="Shards along the second mesh dimension repeat: ranks take the part of their first coordinate.",
    capability="collectives",
    layer="l0",
    must_fail=["COL-0-01"],
)
def local_rank_of_the_first_dimension(patch: Patch) -> None:
    @patch.around(f"{_DEVICE_MESH}:DeviceMesh.get_local_rank", parameters=("self", "mesh_dim"))
    def get_local_rank(original: Any, self: Any, mesh_dim: Any = None) -> int:
        if mesh_dim not in (None, 0):
            patch.reached()
        return original(self, None if mesh_dim is None else 0)


@fault(
    id="col-groups-by-order-of-request",
    symptom="Asking for the tensor parallel group before the data parallel one swaps the two.",
    capability="collectives",
    layer="l0",
    must_fail=["COL-0-02"],
)
def groups_by_order_of_request(patch: Patch) -> None:
    requested: dict[int, list[Any]] = {}

    @patch.around(f"{_DEVICE_MESH}:DeviceMesh.get_group", parameters=("self", "mesh_dim"))
    def get_group(original: Any, self: Any, mesh_dim: Any = None) -> Any:
        if self.ndim == 1:
            return original(self, mesh_dim)
        order = requested.setdefault(id(self), [])
        if mesh_dim not in order:
            order.append(mesh_dim)
        patch.reached()
        return original(self, order.index(mesh_dim))


@fault(
    id="col-flattened-mesh-found-by-size",
    symptom="The second flattened mesh of one size is the first one again: sums over the wrong ranks.",
    capability="collectives",
    layer="l0",
    must_fail=["COL-0-02"],
)
def flattened_mesh_found_by_size(patch: Patch) -> None:
    known: dict[int, Any] = {}

    @patch.around(f"{_OURS}.mesh:flatten_mesh", parameters=("mesh", "name"))
    def flatten_mesh(original: Any, mesh: Any, name: str) -> Any:
        if mesh.size() in known:
            patch.reached()
        return known.setdefault(mesh.size(), original(mesh, name))


@fault(
    id="col-computed-degree-forgets-expert-parallel",
    symptom="With expert parallelism on, the degree left to be computed is too large for the world.",
    capability="collectives",
    layer="l0",
    must_fail=["COL-0-03"],
)
def computed_degree_forgets_expert_parallel(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mesh:parallel_dims", parameters=("world_size",))
    def parallel_dims(original: Any, world_size: int, **degrees: int) -> Any:
        if -1 in degrees.values() and degrees.get("ep", 1) > 1:
            patch.reached()
            return original(world_size, **{**degrees, "ep": 1})
        return original(world_size, **degrees)


@fault(
    id="col-product-of-degrees-not-checked",
    symptom="Degrees for 6 ranks start on 8: two ranks wait for ever.",
    capability="collectives",
    layer="l0",
    must_fail=["COL-0-03"],
)
def product_of_degrees_not_checked(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mesh:parallel_dims", parameters=("world_size",))
    def parallel_dims(original: Any, world_size: int, **degrees: int) -> Any:
        try:
            return original(world_size, **degrees)
        except ValueError as error:
            if "multiply" not in str(error):
                raise
            patch.reached()
            return None


@fault(
    id="col-unknown-dimension-is-the-first",
    symptom='A typing error in mesh["..."] goes unnoticed and shards over the first dimension.',
    capability="collectives",
    layer="l0",
    must_fail=["COL-0-04"],
)
def unknown_dimension_is_the_first(patch: Patch) -> None:
    @patch.around(f"{_DEVICE_MESH}:DeviceMesh.__getitem__", parameters=("self", "mesh_dim_names"))
    def getitem(original: Any, self: Any, mesh_dim_names: Any) -> Any:
        try:
            return original(self, mesh_dim_names)
        except KeyError:
            patch.reached()
            return original(self, self.mesh_dim_names[0])


@fault(
    id="col-repeated-rank-accepted",
    symptom="A rank listed twice hangs the first collective of its group.",
    capability="collectives",
    layer="l0",
    must_fail=["COL-0-04"],
)
def repeated_rank_accepted(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mesh:_check_unique", parameters=("what", "values"))
    def check(original: Any, what: str, values: Any) -> None:
        if what == "rank" and len(set(values)) < len(values):
            patch.reached()
            return None
        return original(what, values)


@fault(
    id="col-unknown-device-gets-gloo",
    symptom="A misspelt device type trains over the host's network instead of being refused.",
    capability="collectives",
    layer="l0",
    must_fail=["COL-0-05"],
)
def unknown_device_gets_gloo(patch: Patch) -> None:
    @patch.around(f"{_OURS}.runtime:get_default_backend_for_device", parameters=("device",))
    def backend(original: Any, device: Any) -> str:
        try:
            return original(device)
        except ValueError:
            patch.reached()
            return "gloo"


@fault(
    id="col-npu-gets-gloo",
    symptom="On NPUs every collective copies through the host.",
    capability="collectives",
    layer="l0",
    must_fail=["COL-0-05"],
)
def npu_gets_gloo(patch: Patch) -> None:
    @patch.around(f"{_OURS}.runtime:get_default_backend_for_device", parameters=("device",))
    def backend(original: Any, device: Any) -> str:
        found = original(device)
        if found != "hccl":
            return found
        patch.reached()
        return "gloo"
