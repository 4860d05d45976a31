"""Cases that end, or end their rank, without giving shared memory back; each tells the names it has used."""

from __future__ import annotations

import os
import signal
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import torch
import torch.multiprocessing

from hyper_parallel_tests.harness.tests.programs.neighbour import neighbour

KEPT: list[object] = []


def share(artifacts: Path) -> None:
    """Make one segment of Python's and one of torch's."""
    segment = SharedMemory(create=True, size=4096)
    tensor = torch.ones(16)
    torch.multiprocessing.set_sharing_strategy("file_system")
    _, name, _ = tensor.untyped_storage()._share_filename_cpu_()
    KEPT.extend([segment, tensor])
    (artifacts / "segments").write_text(f"{segment.name}\n{name.decode().strip('/')}\n")


def test_rank_killed_with_shared_memory(world, artifacts):
    share(artifacts)
    os.kill(os.getpid(), signal.SIGKILL)


test_neighbour_after_killed_rank = neighbour


def test_shared_memory_until_the_end(world, artifacts):
    share(artifacts)
