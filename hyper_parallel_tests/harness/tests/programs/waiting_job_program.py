"""A case whose job waits for ever, with shared memory and a child of its own."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from hyper_parallel_tests.harness import jobs


def wait(world, marks) -> None:
    # Shared memory that has a name.
    torch.multiprocessing.set_sharing_strategy("file_system")
    kept = torch.zeros(2**20).share_memory_()
    if os.fork() == 0:
        signal.pause()
        os._exit(0)
    dist.barrier()
    (marks / f"rank {world.rank} waits").touch()
    threading.Event().wait()
    del kept


@pytest.mark.watchdog(600)
def test_waits(world, artifacts):
    jobs.run(world, wait, artifacts, cards=2)
