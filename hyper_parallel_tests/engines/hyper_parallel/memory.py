"""What the library remembers for the life of a process: groups, meshes and layouts by the ranks in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from hyper_parallel_tests.engines.hyper_parallel.library import find

_TABLES = [
    ("hyper_parallel.core.device_mesh:_group_map", "hyper_parallel.core.dtensor.device_mesh:_group_map"),
    ("hyper_parallel.core.device_mesh:_DEVICE_MESH_MAP", "hyper_parallel.core.dtensor.device_mesh:_DEVICE_MESH_MAP"),
    ("hyper_parallel.platform.platform:EXISTING_COMM_GROUPS",),
    ("hyper_parallel.core.dtensor:_LAYOUT_CACHE", "hyper_parallel.core.dtensor.dtensor:_LAYOUT_CACHE"),
]


@contextmanager
def set_aside() -> Iterator[None]:
    """Context in which the library remembers nothing of before; what it remembered is back on exit.

    To the library a process is one rank of one world. A process that stands for another rank has to begin anew.
    """
    with ExitStack() as stack:
        for places in _TABLES:
            if (table := find(*places)) is not None:
                stack.enter_context(mock.patch.dict(table, clear=True))
        yield
