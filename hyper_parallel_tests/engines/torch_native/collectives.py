"""Collectives of torch_native: torch.distributed's, with ops by name.

Three things are added. Where PyTorch refuses a strided tensor (all_to_all_single), a dense copy stands in for
it. Where gloo refuses unequal shapes, one broadcast per member makes the all-gather, and one flat tensor the
all-to-all.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from hyper_parallel_tests.engines.shared.handles import Handles, copy_back
from hyper_parallel_tests.engines.torch_native.verification import meet

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "prod": dist.ReduceOp.PRODUCT,
}


def _op(name: str) -> dist.ReduceOp:
    if name not in _OPS:
        raise ValueError(f"unknown reduce op {name!r}: expected one of {', '.join(_OPS)}")
    return _OPS[name]


def _flattened(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def barrier(group: ProcessGroup | None = None) -> None:
    """See the port."""
    meet("barrier", group)
    dist.barrier(group)


def all_reduce(
    tensor: Tensor, op: str = "sum", *, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """See the port."""
    meet("all_reduce", group)
    return dist.all_reduce(tensor, _op(op), group, async_op)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, *, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | Handles | None:
    """See the port."""
    meet("all_gather", group)
    if len({part.shape for part in tensor_list}) == 1:
        return dist.all_gather(tensor_list, tensor, group, async_op)
    tensor_list[dist.get_rank(group)].copy_(tensor)
    sources = dist.get_process_group_ranks(group)
    parts = [part.contiguous() for part in tensor_list]
    works = [dist.broadcast(part, src, group, True) for part, src in zip(parts, sources, strict=True)]
    return Handles(works, copy_back(parts, tensor_list)).settle(async_op)


def all_gather_into_tensor(
    output: Tensor, tensor: Tensor, *, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """See the port."""
    meet("all_gather_into_tensor", group)
    return dist.all_gather_single(output, tensor, group, async_op)


def reduce_scatter(
    output: Tensor,
    tensor_list: list[Tensor],
    op: str = "sum",
    *,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See the port."""
    meet("reduce_scatter", group)
    return dist.reduce_scatter(output, tensor_list, _op(op), group, async_op)


def reduce_scatter_tensor(
    output: Tensor,
    tensor: Tensor,
    op: str = "sum",
    *,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See the port."""
    meet("reduce_scatter_tensor", group)
    return dist.reduce_scatter_single(output, tensor, _op(op), group, async_op)


def all_to_all(
    output_list: list[Tensor],
    input_list: list[Tensor],
    *,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | Handles | None:
    """See the port."""
    meet("all_to_all", group)
    # Not by looking at the shapes: they differ between members, who must take the same way.
    if dist.get_backend(group) != "gloo":
        return dist.all_to_all(output_list, input_list, group, async_op)
    sent = [part.numel() for part in input_list]
    received = [part.numel() for part in output_list]
    flat = output_list[0].new_empty(sum(received))
    work = dist.all_to_all_single(flat, _flattened(input_list), received, sent, group, True)
    parts = [part.view(output.shape) for part, output in zip(flat.split(received), output_list, strict=True)]
    return Handles([work], copy_back(parts, output_list)).settle(async_op)


def all_to_all_single(
    output: Tensor,
    tensor: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    *,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Handles | None:
    """See the port."""
    meet("all_to_all_single", group)
    dense = output.contiguous()
    work = dist.all_to_all_single(dense, tensor.contiguous(), output_split_sizes, input_split_sizes, group, True)
    return Handles([work], copy_back([dense], [output])).settle(async_op)


def broadcast(tensor: Tensor, src: int, *, group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """See the port."""
    meet("broadcast", group)
    return dist.broadcast(tensor, src, group, async_op)


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None,
    dst: int,
    *,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See the port."""
    meet("gather", group)
    return dist.gather(tensor, gather_list, dst, group, async_op)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None,
    src: int,
    *,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See the port."""
    meet("scatter", group)
    return dist.scatter(tensor, scatter_list, src, group, async_op)


def all_gather_object(obj: Any, *, group: ProcessGroup | None = None) -> list[Any]:
    """See the port."""
    meet("all_gather_object", group)
    objects = [None] * dist.get_world_size(group)
    dist.all_gather_object(objects, obj, group)
    return objects


def broadcast_object(obj: Any, src: int, *, group: ProcessGroup | None = None) -> Any:
    """See the port."""
    meet("broadcast_object", group)
    objects = [obj]
    dist.broadcast_object_list(objects, src, group)
    return objects[0]


def gather_object(obj: Any, dst: int, *, group: ProcessGroup | None = None) -> list[Any] | None:
    """See the port."""
    meet("gather_object", group)
    objects = [None] * dist.get_world_size(group) if dist.get_rank() == dst else None
    dist.gather_object(obj, objects, dst, group)
    return objects


def scatter_object(objects: list[Any] | None, src: int, *, group: ProcessGroup | None = None) -> Any:
    """See the port."""
    meet("scatter_object", group)
    mine = [None]
    dist.scatter_object_list(mine, objects, src, group)
    return mine[0]
