"""Device meshes: HyperParallel's."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ProcessGroup

from hyper_parallel_tests.engines.hyper_parallel.library import find, refuse
from hyper_parallel_tests.engines.hyper_parallel.mesh_members import completed
from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["DeviceMesh", "flatten_mesh", "init_device_mesh", "mesh_from_group", "parallel_dims", "root_mesh"]

_DeviceMesh = find("hyper_parallel:DeviceMesh")
_init_device_mesh = find("hyper_parallel:init_device_mesh")
_OPTIONS = inspect.signature(_init_device_mesh).parameters
_NAMES = "mesh_dim_names" if "mesh_dim_names" in _OPTIONS else "alias_name"
_INSISTS_ON_NAMES = _OPTIONS[_NAMES].default is inspect.Parameter.empty


def _numbered(ndim: int) -> tuple[str, ...]:
    return tuple(f"dim_{dim}" for dim in range(ndim))


if "device_type" not in _OPTIONS:
    DeviceMesh = Unsupported("this version of the library makes a mesh for whatever device there is")
elif _INSISTS_ON_NAMES:

    class DeviceMesh(_DeviceMesh):
        """The library's, with numbers for the names on which it insists."""

        def __init__(self, device_type: str, mesh: Any, *, mesh_dim_names: Any = None, **options: Any) -> None:
            names = mesh_dim_names or _numbered(torch.as_tensor(mesh).ndim)
            super().__init__(device_type, mesh, mesh_dim_names=names, **options)

else:
    DeviceMesh = _DeviceMesh

parallel_dims = Unsupported("the library has no parallel dimensions apart from the trainer's")


def init_device_mesh(
    device_type: str,
    mesh_shape: tuple[int, ...],
    *,
    mesh_dim_names: tuple[str, ...] | None = None,
    rank_list: Sequence[int] | None = None,
) -> Any:
    """See the port. Where the library insists on names, dimensions without one get a number."""
    if mesh_dim_names is None and _INSISTS_ON_NAMES:
        mesh_dim_names = _numbered(len(mesh_shape))
    options: dict[str, Any] = {"mesh_shape": mesh_shape, _NAMES: mesh_dim_names}
    if "device_type" in _OPTIONS:
        options["device_type"] = device_type
    if rank_list is not None:
        if "rank_list" not in _OPTIONS:
            refuse("init_device_mesh", "this version of the library makes meshes of consecutive ranks only")
        options["rank_list"] = tuple(rank_list)
    return completed(_init_device_mesh(**options))


def mesh_from_group(
    group: ProcessGroup | list[ProcessGroup],
    device_type: str,
    mesh: torch.Tensor | None = None,
    *,
    mesh_dim_names: tuple[str, ...] | None = None,
) -> Any:
    """See the port."""
    asked = [device_type] if "device_type" in inspect.signature(_DeviceMesh.from_group).parameters else []
    return _DeviceMesh.from_group(group, *asked, mesh, mesh_dim_names=mesh_dim_names)


if not hasattr(_DeviceMesh, "from_group"):
    mesh_from_group = Unsupported("this version of the library makes a mesh's groups itself")


def flatten_mesh(mesh: Any, name: str) -> Any:
    """See the port."""
    if not inspect.signature(mesh.flatten).parameters:
        refuse("flatten_mesh", "this version of the library names a flattened mesh itself")
    return completed(mesh.flatten(name))


def root_mesh(mesh: Any) -> Any:
    """See the port. To the library a root has no root."""
    return completed(mesh.root_mesh or mesh)
