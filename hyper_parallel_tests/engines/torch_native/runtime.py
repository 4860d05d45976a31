"""Runtime base of torch_native: torch.distributed's process groups."""

from __future__ import annotations

from datetime import timedelta
from unittest import mock
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Store
from torch.distributed import distributed_c10d as c10d

from hyper_parallel_tests.engines.shared.simulation import simulated_world
from hyper_parallel_tests.engines.torch_native import verification

__all__ = [
    "destroy_process_group",
    "get_backend",
    "get_default_backend_for_device",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
    "new_group",
    "simulated_world",
    "split_group",
]

is_initialized = dist.is_initialized
get_backend = dist.get_backend
get_rank = dist.get_rank
get_world_size = dist.get_world_size

# PyTorch learns of NPUs only when torch_npu is imported, but the choice of the backend must not depend on
# that.
_BACKENDS_OUTSIDE_PYTORCH = {"npu": "hccl"}


def get_default_backend_for_device(device: str | torch.device) -> str:
    """See the port. PyTorch's own map, and hccl for npu."""
    device_type = device.type if isinstance(device, torch.device) else device.partition(":")[0]
    known = _BACKENDS_OUTSIDE_PYTORCH | dist.Backend.default_device_backend_map
    if device_type not in known:
        raise ValueError(
            f"no backend for device type {device_type!r}: expected one of {', '.join(sorted(known))}; "
            "a third-party device registers its backend with torch.distributed.Backend.register_backend"
        )
    return known[device_type]


def init_process_group(
    backend: str | None = None,
    *,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    device_id: torch.device | None = None,
) -> None:
    """See the port."""
    accelerator = device_id if device_id is not None and device_id.type != "cpu" else None
    dist.init_process_group(
        backend or get_default_backend_for_device(device_id or "cpu"),
        init_method=init_method,
        timeout=timeout,
        world_size=world_size,
        rank=rank,
        store=store,
        device_id=accelerator,
    )


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """See the port."""
    dist.destroy_process_group(group)


def get_process_group_ranks(group: ProcessGroup | None = None) -> list[int]:
    """See the port."""
    return dist.get_process_group_ranks(group)


def new_group(
    ranks: list[int] | None = None, *, timeout: timedelta | None = None, verified: bool = False
) -> ProcessGroup | None:
    """See the port."""
    group = dist.new_group(ranks, timeout=timeout)
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return None
    if verified:
        verification.watch(group, timeout or dist.constants.default_pg_timeout)
    return group


def split_group(
    parent_pg: ProcessGroup | None = None, split_ranks: list[list[int]] | None = None
) -> ProcessGroup | None:
    """See the port. A new group for each part: PyTorch splits communicators on accelerators only."""
    parent = parent_pg or dist.group.WORLD
    parent_ranks = dist.get_process_group_ranks(parent)
    _check_parts(split_ranks or [], len(parent_ranks))
    _splits[parent] = _splits.get(parent, 0) + 1
    for part in split_ranks or []:
        ranks = [parent_ranks[group_rank] for group_rank in part]
        if dist.get_rank() in ranks:
            return _group_of_callers(f"{parent.group_name}/split {_splits[parent]}/{ranks}", ranks)
    return None


_splits: WeakKeyDictionary[ProcessGroup, int] = WeakKeyDictionary()


def _group_of_callers(name: str, ranks: list[int]) -> ProcessGroup:
    """A group that only its members create, so that a parent smaller than the world can be split."""
    # PyTorch would call it by the number of groups that the rank is in: members who are in different numbers
    # of groups would wait for each other for ever (pytorch/pytorch#189073).
    with mock.patch.object(c10d, "_hash_ranks_to_str", return_value=name):
        return dist.new_group(ranks, use_local_synchronization=True)


def _check_parts(parts: list[list[int]], parent_size: int) -> None:
    seen: set[int] = set()
    for group_rank in (rank for part in parts for rank in part):
        if group_rank in seen:
            raise ValueError(f"cannot split into {parts}: group rank {group_rank} is in two parts")
        if group_rank not in range(parent_size):
            raise ValueError(f"cannot split into {parts}: the parent of {parent_size} has no group rank {group_rank}")
        seen.add(group_rank)
