"""Collectives: those of HyperParallel's platform layer, which sum, gather and broadcast.

The layer gives its outputs back; here they go where the port wants them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from hyper_parallel_tests.engines.hyper_parallel.library import platform, platform_has, refuse
from hyper_parallel_tests.engines.port import Unsupported
from hyper_parallel_tests.engines.shared.handles import Handles, copy_back

_LEFT_OUT = Unsupported("the library has no such collective of its own; its programs use PyTorch's")

barrier = _LEFT_OUT
all_gather = _LEFT_OUT
reduce_scatter = _LEFT_OUT
all_to_all = _LEFT_OUT
all_to_all_single = _LEFT_OUT
gather = _LEFT_OUT
scatter = _LEFT_OUT
broadcast_object = _LEFT_OUT
gather_object = _LEFT_OUT
scatter_object = _LEFT_OUT


def _members(group: ProcessGroup | None) -> SimpleNamespace:
    """A group as the layer's collectives want it."""
    return SimpleNamespace(group=group, rank_size=dist.get_world_size(group))


def _sum_only(member: str, op: str) -> None:
    if op != "sum":
        refuse(member, f"the library's {member} sums and has no {op}")


def _deliver(given: tuple[Tensor, Any], output: Tensor, async_op: bool) -> Handles | None:
    result, work = given
    return Handles([] if work is None else [work], copy_back([result], [output])).settle(async_op)


@platform_has("all_reduce")
def all_reduce(
    tensor: Tensor, op: str = "sum", *, group: ProcessGroup | None = None, async_op: bool = False
) -> Handles | None:
    """See the port."""
    _sum_only("all_reduce", op)
    return _deliver(platform().all_reduce(tensor, _members(group), async_op), tensor, async_op)


@platform_has("all_gather_into_tensor")
def all_gather_into_tensor(
    output: Tensor, tensor: Tensor, *, group: ProcessGroup | None = None, async_op: bool = False
) -> Handles | None:
    """See the port."""
    return _deliver(platform().all_gather_into_tensor(tensor, _members(group), async_op), output, async_op)


@platform_has("reduce_scatter_tensor")
def reduce_scatter_tensor(
    output: Tensor,
    tensor: Tensor,
    op: str = "sum",
    *,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Handles | None:
    """See the port."""
    _sum_only("reduce_scatter_tensor", op)
    return _deliver(platform().reduce_scatter_tensor(tensor, _members(group), async_op), output, async_op)


@platform_has("broadcast")
def broadcast(tensor: Tensor, src: int, *, group: ProcessGroup | None = None, async_op: bool = False) -> Handles | None:
    """See the port. The library's is over when it returns, ``async_op`` or not."""
    platform().broadcast(tensor, src, group, async_op)
    return Handles([], copy_back([], [])).settle(async_op)


@platform_has("all_gather_object")
def all_gather_object(obj: Any, *, group: ProcessGroup | None = None) -> list[Any]:
    """See the port."""
    objects = [None] * dist.get_world_size(group)
    platform().all_gather_object(objects, obj, group)
    return objects
