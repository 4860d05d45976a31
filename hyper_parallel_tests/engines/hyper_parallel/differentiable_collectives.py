"""Differentiable collectives: those of HyperParallel's platform layer, on which its redistribution rests."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from hyper_parallel_tests.engines.hyper_parallel.library import platform, platform_has, refuse


@platform_has("differentiable_all_reduce")
def differentiable_all_reduce(tensor: Tensor, *, group: ProcessGroup | None = None) -> Tensor:
    """See the port."""
    return platform().differentiable_all_reduce(tensor, "sum", group or dist.group.WORLD)


@platform_has("differentiable_all_gather_concat")
def differentiable_all_gather(tensor: Tensor, dim: int = 0, *, group: ProcessGroup | None = None) -> Tensor:
    """See the port."""
    everyone = group or dist.group.WORLD
    return platform().differentiable_all_gather_concat(tensor, everyone, dist.get_world_size(everyone), dim)


@platform_has("differentiable_reduce_scatter")
def differentiable_reduce_scatter(tensor: Tensor, dim: int = 0, *, group: ProcessGroup | None = None) -> Tensor:
    """See the port."""
    everyone = group or dist.group.WORLD
    return platform().differentiable_reduce_scatter(tensor, dist.get_world_size(everyone), dim, "sum", everyone)


@platform_has("differentiable_all_to_all")
def differentiable_all_to_all(
    tensor: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    *,
    group: ProcessGroup | None = None,
) -> Tensor:
    """See the port."""
    if output_split_sizes is not None or input_split_sizes is not None:
        refuse("differentiable_all_to_all", "the library's all-to-all exchanges equal parts only")
    return platform().differentiable_all_to_all(tensor, tensor.shape, group or dist.group.WORLD)
