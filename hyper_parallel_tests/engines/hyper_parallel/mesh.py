"""Device meshes: HyperParallel's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ProcessGroup

from hyper_parallel_tests.engines.hyper_parallel.library import find
from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["DeviceMesh", "flatten_mesh", "init_device_mesh", "mesh_from_group", "parallel_dims", "root_mesh"]

DeviceMesh = find("hyper_parallel:DeviceMesh")
_init_device_mesh = find("hyper_parallel:init_device_mesh")

parallel_dims = Unsupported("the library has no parallel dimensions apart from the trainer's")


def init_device_mesh(
    device_type: str,
    mesh_shape: tuple[int, ...],
    *,
    mesh_dim_names: tuple[str, ...] | None = None,
    rank_list: Sequence[int] | None = None,
) -> Any:
    """See the port."""
    ranks = None if rank_list is None else tuple(rank_list)
    return _init_device_mesh(device_type, mesh_shape, mesh_dim_names=mesh_dim_names, rank_list=ranks)


def mesh_from_group(
    group: ProcessGroup | list[ProcessGroup],
    device_type: str,
    mesh: torch.Tensor | None = None,
    *,
    mesh_dim_names: tuple[str, ...] | None = None,
) -> Any:
    """See the port."""
    return DeviceMesh.from_group(group, device_type, mesh, mesh_dim_names=mesh_dim_names)


def flatten_mesh(mesh: Any, name: str) -> Any:
    """See the port."""
    return mesh.flatten(name)


def root_mesh(mesh: Any) -> Any:
    """See the port. To the library a root has no root."""
    return mesh.root_mesh or mesh
