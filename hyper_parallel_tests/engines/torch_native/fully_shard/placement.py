"""Which parameters are sharded on which dimension, and which are replicated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_common import HSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import Replicate, Shard

PlacementFn: TypeAlias = Callable[[nn.Parameter], Shard | Replicate | None]


class Placements:
    """FSDP2's ``shard_placement_fn`` for one call: asks the user's, and knows the replicated parameters.

    FSDP2 has no Replicate. It has meshes of a parameter's own, and a parameter sharded over a dimension of
    size 1 and all-reduced over all ranks of ``mesh`` is a replicated one.
    """

    def __init__(self, mesh: DeviceMesh, placement_fn: PlacementFn | None, replicated: Iterable[nn.Parameter]) -> None:
        self._mesh = mesh
        self._placement_fn = placement_fn
        self._replicated = set(replicated)
        self._replicas: HSDPMeshInfo | None = None

    def __call__(self, parameter: nn.Parameter) -> Shard | ShardPlacementResult | None:
        placement = self._placement_fn(parameter) if self._placement_fn else None
        if placement is not None and not isinstance(placement, Shard | Replicate):
            raise TypeError(f"shard_placement_fn must return Shard, Replicate or None, got {placement!r}")
        if parameter not in self._replicated and not isinstance(placement, Replicate):
            return placement
        if isinstance(placement, Shard):
            raise ValueError(
                f"parameter of shape {tuple(parameter.shape)} is in replicate_params, "
                f"but shard_placement_fn wants {placement}"
            )
        if self._replicas is None:
            self._replicas = _replicas_over(self._mesh)
        return ShardPlacementResult(Shard(0), self._replicas)


def _replicas_over(mesh: DeviceMesh) -> HSDPMeshInfo:
    if mesh.ndim > 1:
        mesh = mesh._flatten()
    replicas = DeviceMesh.from_group(
        [mesh.get_group(), _alone()],
        mesh.device_type,
        mesh=mesh.mesh.view(-1, 1),
        mesh_dim_names=("replicate", "shard"),
    )
    return HSDPMeshInfo(replicas, shard_mesh_dim=1, replicate_mesh_dim=0)


def _alone() -> dist.ProcessGroup:
    """This rank's group of itself, one for the life of the default group."""
    world = dist.group.WORLD
    if world not in _ALONE:
        _ALONE[world] = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return _ALONE[world]


_ALONE: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()
