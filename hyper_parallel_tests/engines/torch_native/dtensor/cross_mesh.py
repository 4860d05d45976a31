"""Redistribution from one mesh to another, which PyTorch does not offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.placement_types import Placement

from hyper_parallel_tests.engines.torch_native.dtensor.factories import distribute_tensor


def redistribute(tensor: DTensor, device_mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """See the port. PyTorch's own on one mesh."""
    if device_mesh == tensor.device_mesh:
        return tensor.redistribute(device_mesh, placements)
    if any(placement.is_partial() for placement in placements):
        raise RuntimeError(f"cannot redistribute to {tuple(placements)} on another mesh: a target cannot be Partial")
    return _Redistribute.apply(tensor, device_mesh, tuple(placements))


class _Redistribute(torch.autograd.Function):
    """The full tensor is the meeting point: gathered on the one mesh, divided on the other.

    As a map of full tensors it is the identity, so its gradient goes the same way back: what is Partial in the gradient
    is summed by the gathering. A rank in both meshes needs nothing more; where the target has further ranks, the
    first rank of the source tells the world.
    """

    @staticmethod
    def forward(ctx: Any, tensor: DTensor, device_mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
        ctx.source = tensor.device_mesh
        ctx.placements = tuple(Replicate() if one.is_partial() else one for one in tensor.placements)
        return _move(tensor, device_mesh, placements)

    @staticmethod
    def backward(ctx: Any, grad: DTensor) -> tuple[DTensor, None, None]:
        return _move(grad, ctx.source, ctx.placements), None, None


def _move(tensor: DTensor, device_mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
    source = tensor.device_mesh
    if source.get_coordinate() is not None:
        full = tensor.full_tensor().contiguous()
    else:
        full = torch.empty(tensor.shape, dtype=tensor.dtype, device=source.device_type)
    if not set(_ranks(device_mesh)) <= set(_ranks(source)):
        dist.broadcast(full, src=_ranks(source)[0])
    return distribute_tensor(full, device_mesh, placements)


def _ranks(mesh: DeviceMesh) -> list[int]:
    return mesh.mesh.flatten().tolist()
