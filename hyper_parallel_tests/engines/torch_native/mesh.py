"""Device meshes of torch_native: PyTorch's DeviceMesh, and plain parallel dimensions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.device_mesh import init_device_mesh as _init_device_mesh

__all__ = ["DeviceMesh", "flatten_mesh", "init_device_mesh", "mesh_from_group", "parallel_dims", "root_mesh"]


def init_device_mesh(
    device_type: str,
    mesh_shape: tuple[int, ...],
    *,
    mesh_dim_names: tuple[str, ...] | None = None,
    rank_list: Sequence[int] | None = None,
) -> DeviceMesh:
    """See the port. PyTorch has no ``rank_list`` here, so that one is checked and goes through the class."""
    if rank_list is None:
        return _init_device_mesh(device_type, mesh_shape, mesh_dim_names=mesh_dim_names)
    _check_unique("mesh dimension", mesh_dim_names or ())
    _check_unique("rank", rank_list)
    if len(rank_list) != math.prod(mesh_shape):
        raise ValueError(f"a mesh of shape {mesh_shape} needs {math.prod(mesh_shape)} ranks, got {len(rank_list)}")
    for rank in rank_list:
        if rank not in range(dist.get_world_size()):
            raise ValueError(f"rank {rank} in rank_list is outside the world of {dist.get_world_size()} ranks")
    return DeviceMesh(device_type, torch.tensor(rank_list).reshape(mesh_shape), mesh_dim_names=mesh_dim_names)


def mesh_from_group(
    group: ProcessGroup | list[ProcessGroup],
    device_type: str,
    mesh: torch.Tensor | None = None,
    *,
    mesh_dim_names: tuple[str, ...] | None = None,
) -> DeviceMesh:
    """See the port."""
    return DeviceMesh.from_group(group, device_type, mesh, mesh_dim_names=mesh_dim_names)


def flatten_mesh(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """See the port."""
    return mesh._flatten(name)


def root_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """See the port."""
    return mesh._get_root_mesh()


@dataclass(frozen=True)
class ParallelDims:
    """See the port. A plain reference; every degree, ep included, is a factor of the world."""

    world_size: int
    degrees: Mapping[str, int]

    def build_mesh(self, device_type: str) -> DeviceMesh:
        """See the port."""
        used = {name: degree for name, degree in self.degrees.items() if degree > 1} or {"world": 1}
        return init_device_mesh(device_type, tuple(used.values()), mesh_dim_names=tuple(used))


def parallel_dims(
    world_size: int, *, dp: int = 1, fsdp: int = 1, tp: int = 1, pp: int = 1, cp: int = 1, ep: int = 1
) -> ParallelDims:
    """See the port."""
    degrees = {"pp": pp, "dp": dp, "fsdp": fsdp, "cp": cp, "ep": ep, "tp": tp}
    for name, degree in degrees.items():
        if degree < 1 and degree != -1:
            raise ValueError(f"degree of {name} is {degree}: expected a positive number, or -1 to compute it")
    computed = [name for name, degree in degrees.items() if degree == -1]
    if len(computed) > 1:
        raise ValueError(f"only one degree can be -1, got {', '.join(computed)}")
    product = math.prod(degree for degree in degrees.values() if degree != -1)
    if world_size % product != 0 or (not computed and product != world_size):
        raise ValueError(f"degrees {degrees} multiply to {product}, which does not match a world of {world_size} ranks")
    if computed:
        degrees[computed[0]] = world_size // product
    return ParallelDims(world_size, MappingProxyType(degrees))


def _check_unique(what: str, values: Sequence[int] | Sequence[str]) -> None:
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise ValueError(f"{what} {repeated[0]!r} is repeated in {list(values)}")
