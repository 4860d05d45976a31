"""Port of device meshes and parallel dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


class DeviceMeshMembers(Protocol):
    """What a mesh object offers. A mesh is an n-dimensional array of global ranks."""

    mesh: torch.Tensor
    """Global ranks, integer, one tensor dimension per mesh dimension."""
    mesh_dim_names: tuple[str, ...] | None
    ndim: int
    device_type: str

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMeshMembers:
        """The submesh along ``names`` that holds the calling rank. KeyError names an unknown dimension."""

    def size(self, mesh_dim: int | None = None) -> int:
        """Number of ranks along a dimension, or in the whole mesh."""

    def get_coordinate(self) -> Sequence[int] | None:
        """The calling rank's index along each dimension; None for a rank outside the mesh."""

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """The calling rank's index along ``mesh_dim``, which is its rank in ``get_group(mesh_dim)``."""

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        """The calling rank's group along ``mesh_dim``."""


class ParallelDimsMembers(Protocol):
    """Degrees of parallelism of a run. They multiply to the world."""

    world_size: int
    degrees: Mapping[str, int]
    """Degrees of pp, dp, fsdp, cp, ep, tp, outermost first: neighbours in tp are neighbouring ranks."""

    def build_mesh(self, device_type: str) -> Any:
        """The world's mesh: a dimension per degree above one, outermost first, or ``world`` if none is."""


class Mesh(Protocol):
    """Device meshes: the ranks of a world in an n-dimensional array, with a group along each dimension.

    Each rank is in exactly one group per dimension: the ranks that share all its other coordinates, in
    ascending order of the coordinate along that dimension.
    """

    DeviceMesh: type[DeviceMeshMembers]

    def init_device_mesh(
        self,
        device_type: str,
        mesh_shape: tuple[int, ...],
        *,
        mesh_dim_names: tuple[str, ...] | None = None,
        rank_list: Sequence[int] | None = None,
    ) -> DeviceMeshMembers:
        """Makes a row-major mesh of ``mesh_shape`` over ``rank_list`` (None: ranks 0, 1, ...); collective.

        Raises:
            ValueError or RuntimeError: a repeated name or rank, a rank outside the world, more places than
            the world
                has ranks, or a ``rank_list`` of another length. The message names the culprit.
        """

    def mesh_from_group(
        self,
        group: ProcessGroup | list[ProcessGroup],
        device_type: str,
        mesh: torch.Tensor | None = None,
        *,
        mesh_dim_names: tuple[str, ...] | None = None,
    ) -> DeviceMeshMembers:
        """Mesh over existing groups, one per dimension. More than one group need ``mesh`` and names."""

    def flatten_mesh(self, mesh: DeviceMeshMembers, name: str) -> DeviceMeshMembers:
        """One-dimensional mesh ``name`` over the ranks of ``mesh`` in row-major order; collective."""

    def root_mesh(self, mesh: DeviceMeshMembers) -> DeviceMeshMembers:
        """The mesh from which ``mesh`` was sliced or flattened; ``mesh`` itself when it is a root."""

    def parallel_dims(
        self,
        world_size: int,
        *,
        dp: int = 1,
        fsdp: int = 1,
        tp: int = 1,
        pp: int = 1,
        cp: int = 1,
        ep: int = 1,
    ) -> ParallelDimsMembers:
        """Checks degrees against the world. One of them may be -1 and becomes what is left.

        Raises:
            ValueError: a degree is 0 or below -1, two are -1, or the product cannot match. The message names
            the
                degree, or both the product and the world size.
        """
