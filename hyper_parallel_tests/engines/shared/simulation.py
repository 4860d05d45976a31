"""One process stands for one rank of a large world, without communication."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch.distributed as dist
from torch._C._distributed_c10d import _register_process_group, _unregister_process_group
from torch.distributed import distributed_c10d as c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

_TABLES = ("_pg_map", "_pg_names", "_pg_group_ranks", "_pg_backend_config", "_tags_to_pg", "_pg_to_tag")


@contextmanager
def simulated_world(rank: int, world_size: int) -> Iterator[None]:
    """See the port. Groups are PyTorch's fake ones; the outer groups are set aside and come back."""
    outer_default, outer_names = c10d._world.default_pg, dict(c10d._pg_names)
    for name in outer_names.values():
        _unregister_process_group(name)
    try:
        # init_process_group chains one more excepthook each time.
        with (
            mock.patch.multiple(c10d, _group_count=0, **{table: {} for table in _TABLES}),
            mock.patch.object(sys, "excepthook", sys.excepthook),
        ):
            c10d._update_default_pg(None)
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
            try:
                yield
            finally:
                if dist.is_initialized():
                    dist.destroy_process_group()
    finally:
        c10d._update_default_pg(outer_default)
        for group, name in outer_names.items():
            _register_process_group(name, group)
