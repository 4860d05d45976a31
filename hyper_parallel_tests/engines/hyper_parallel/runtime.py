"""Runtime base: HyperParallel's process groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup

from hyper_parallel_tests.engines.hyper_parallel.library import find, offered, platform, refuse
from hyper_parallel_tests.engines.hyper_parallel.memory import set_aside
from hyper_parallel_tests.engines.port import Unsupported
from hyper_parallel_tests.engines.shared import simulation

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

get_default_backend_for_device = Unsupported("the library does not tell which backend it takes for a device")
is_initialized = Unsupported("the library does not tell whether there is a default group")


def _member(name: str) -> Any:
    return offered(f"hyper_parallel:{name}", reason="this version of the library leaves process groups to PyTorch")


init_process_group = _member("init_process_group")
destroy_process_group = _member("destroy_process_group")
get_backend = _member("get_backend")
get_process_group_ranks = _member("get_process_group_ranks")
split_group = _member("split_group")
_get_group_local_rank = find("hyper_parallel:get_group_local_rank")


def get_rank(group: ProcessGroup | None = None) -> int:
    """See the port."""
    if group is None and platform() is not None:
        return platform().get_rank()
    if _get_group_local_rank is None:
        refuse("get_rank", "the library tells ranks in the default group only")
    return _get_group_local_rank(group)


def get_world_size(group: ProcessGroup | None = None) -> int:
    """See the port."""
    if group is not None or platform() is None:
        refuse("get_world_size", "the library tells the size of the default group only")
    return platform().get_world_size()


def new_group(
    ranks: list[int] | None = None, *, timeout: timedelta | None = None, verified: bool = False
) -> ProcessGroup | None:
    """See the port. A division of the world that has one part."""
    if isinstance(split_group, Unsupported):
        refuse("new_group", split_group.reason)
    if verified:
        refuse("new_group", "no group of the library makes its members agree on each collective")
    return split_group(split_ranks=[list(range(dist.get_world_size())) if ranks is None else ranks], timeout=timeout)


@contextmanager
def simulated_world(rank: int, world_size: int) -> Iterator[None]:
    """See the port. The library makes its groups through PyTorch, so PyTorch's simulation serves it."""
    with set_aside(), simulation.simulated_world(rank, world_size):
        yield
