"""What a rank can tell of its collectives without having been prepared for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

from hyper_parallel_tests.harness.judging.flight import last_collectives


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A default process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_collectives_are_told_oldest_first():
    """Name, number in the group, ranks, dtypes, shapes and state of each."""
    start = time.time_ns()
    dist.all_reduce(torch.ones(2, 3))
    dist.broadcast(torch.ones(4).bfloat16(), src=0)
    dist.barrier()
    lines = last_collectives(since_ns=start)
    assert [line.split(" of ")[0] for line in lines] == ["all_reduce #1", "broadcast #2", "barrier #3"]
    assert lines[0].startswith("all_reduce #1 of default_pg (0,): float32[2, 3] -> float32[2, 3]: ")
    assert "bfloat16[4]" in lines[1]


@pytest.mark.usefixtures("one_rank")
def test_only_the_last_and_only_the_recent():
    """`limit` keeps the newest, `since_ns` leaves out what came before."""
    dist.all_reduce(torch.ones(1))
    start = time.time_ns()
    for _ in range(3):
        dist.broadcast(torch.ones(1), src=0)
    assert len(last_collectives(limit=2, since_ns=start)) == 2
    assert len(last_collectives(since_ns=start)) == 3
    assert all("broadcast" in line for line in last_collectives(since_ns=start))


def test_without_a_process_group_there_is_nothing():
    """Asking costs nothing and breaks nothing where no group exists."""
    assert last_collectives(since_ns=time.time_ns()) == []


def test_a_thread_that_waits_is_told_with_its_line():
    """What the recorder does not hold shows by the stack of the thread that waits."""
    store = dist.HashStore()
    thread = threading.Thread(target=lambda: store.wait(["key"]), name="waiter")
    thread.start()
    try:
        (line,) = until(lambda: [line for line in last_collectives() if line.startswith("waiter")])
    finally:
        store.set("key", "there")
        thread.join()
    assert line.startswith("waiter waits at l0_flight_test.py:")
    assert 'store.wait(["key"])' in line


def until(look: Callable[[], list[str]], limit_s: float = 10.0) -> list[str]:
    """What `look` finds, as soon as it finds anything."""
    end, tick = time.monotonic() + limit_s, threading.Event()
    while time.monotonic() < end:
        if found := look():
            return found
        tick.wait(0.001)
    return []
