"""Whole tensors and the parts of them that a rank has."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: Tensor) -> Tensor:
    """This rank's part, which shares memory with the tensor."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All parts together; collective where the tensor is divided."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def laid_out_as(like: Tensor, value: Tensor) -> Tensor:
    """A whole tensor divided as another is, without communication."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.contiguous(), like.device_mesh, like.placements, src_data_rank=None)
