"""Distributed tensors from full ones, from parts, and from nothing; operators on them, and backward from one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed.tensor as dtensor
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, _utils
from torch.distributed.tensor.placement_types import Placement


def distribute_tensor(
    tensor: Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement], *, src_data_rank: int | None = None
) -> DTensor:
    """See the port. PyTorch's default is to send the values of the first rank."""
    return dtensor.distribute_tensor(tensor, device_mesh, placements, src_data_rank=src_data_rank)


def from_local(
    local_tensor: Tensor,
    device_mesh: DeviceMesh,
    placements: Sequence[Placement],
    *,
    shape: Sequence[int] | None = None,
) -> DTensor:
    """See the port. Where PyTorch gets a shape it wants a stride too."""
    if shape is None:
        return DTensor.from_local(local_tensor, device_mesh, placements)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local_tensor, device_mesh, placements, shape=torch.Size(shape), stride=stride)


def apply_operator(operator: Callable[..., Any], *inputs: DTensor) -> Any:
    """See the port."""
    return operator(*inputs)


def backward(tensor: DTensor | Sequence[DTensor], gradient: Tensor | Sequence[Tensor]) -> None:
    """See the port."""
    tensors, gradients = ([tensor], [gradient]) if isinstance(tensor, DTensor) else (tensor, gradient)
    torch.autograd.backward(tensors, [_placed_as(*pair) for pair in zip(tensors, gradients, strict=True)])


def _placed_as(tensor: DTensor, gradient: Tensor) -> DTensor:
    """A gradient as its tensor's backward wants it: that of each term of a Partial tensor is the whole."""
    placements = [Replicate() if placement.is_partial() else placement for placement in tensor.placements]
    return distribute_tensor(gradient, tensor.device_mesh, placements)


def full_gradient(tensor: DTensor) -> Tensor | None:
    """See the port."""
    return None if tensor.grad is None else tensor.grad.full_tensor()


def compute_local_shape_and_global_offset(
    global_shape: Sequence[int], device_mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """See the port."""
    return _utils.compute_local_shape_and_global_offset(global_shape, device_mesh, placements)


ones = dtensor.ones
zeros = dtensor.zeros
full = dtensor.full
empty = dtensor.empty


def rand(size: Sequence[int], *, device_mesh: DeviceMesh, placements: Sequence[Placement], **options: Any) -> DTensor:
    """See the port."""
    return _random(torch.rand, dtensor.rand, size, device_mesh, placements, **options)


def randn(size: Sequence[int], *, device_mesh: DeviceMesh, placements: Sequence[Placement], **options: Any) -> DTensor:
    """See the port."""
    return _random(torch.randn, dtensor.randn, size, device_mesh, placements, **options)


def _random(
    draw: Callable[..., Tensor],
    sharded: Callable[..., DTensor],
    size: Sequence[int],
    device_mesh: DeviceMesh,
    placements: Sequence[Placement],
    **options: Any,
) -> DTensor:
    """PyTorch's own where it has one.

    It needs a generator that can jump to an offset (Philox), which a CPU has not. There each rank draws the full tensor
    and keeps its part: by that the states advance alike, and a part is one of the tensor that a single card would draw.
    """
    if device_mesh.device_type != "cpu":
        return sharded(size, device_mesh=device_mesh, placements=placements, **options)
    return distribute_tensor(draw(size, **options), device_mesh, placements)
