"""Differentiable collectives of torch_native: PyTorch's functional collectives, waited for."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as functional


def differentiable_all_reduce(tensor: Tensor, *, group: ProcessGroup | None = None) -> Tensor:
    """See the port."""
    return functional.wait_tensor(functional.all_reduce(tensor, "sum", group or dist.group.WORLD))


def differentiable_all_gather(tensor: Tensor, dim: int = 0, *, group: ProcessGroup | None = None) -> Tensor:
    """See the port."""
    return functional.wait_tensor(functional.all_gather_single(tensor, dim, group or dist.group.WORLD))


def differentiable_reduce_scatter(tensor: Tensor, dim: int = 0, *, group: ProcessGroup | None = None) -> Tensor:
    """See the port."""
    return functional.wait_tensor(functional.reduce_scatter_single(tensor, "sum", dim, group or dist.group.WORLD))


def differentiable_all_to_all(
    tensor: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    *,
    group: ProcessGroup | None = None,
) -> Tensor:
    """See the port."""
    return functional.wait_tensor(
        functional.all_to_all_single(tensor, output_split_sizes, input_split_sizes, group or dist.group.WORLD)
    )
