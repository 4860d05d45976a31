"""Cases that fail in ordinary and odd ways on two ranks, a healthy one after each."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hyper_parallel_tests.harness.tests.programs.neighbour import neighbour


def wait_for(path: Path) -> None:
    """Wait for what a peer writes."""
    while not path.exists():
        time.sleep(0.001)


@pytest.fixture
def over(artifacts: Path, world) -> Iterator[list[Path]]:
    """A file per rank that appears once the rank's case is over, with whatever result."""
    files = [artifacts / f"rank{rank} is over" for rank in range(world.size)]
    yield files
    files[world.rank].touch()


test_neighbour_at_the_start = neighbour


def test_assertion_on_one_rank(world):
    neighbour(world)
    assert world.rank != 1, "rank 1 is odd"


test_neighbour_after_assertion = neighbour


def test_two_failures(world, over):
    if world.rank == 0:
        wait_for(over[1])
        raise ValueError("the second in time")
    pytest.fail("the first in time")


test_neighbour_after_two_failures = neighbour


def test_symptom_before_cause(world, over):
    if world.rank == 0:
        neighbour(world)
    dist.destroy_process_group()
    wait_for(over[0])
    raise ValueError("the cause")


test_neighbour_after_symptom = neighbour


@pytest.fixture
def broken_on_rank_1(world):
    if world.rank == 1:
        raise ValueError("no data on rank 1")


def test_error_in_setup_while_a_peer_waits(world, broken_on_rank_1):
    neighbour(world)


test_neighbour_after_error_in_setup = neighbour


@pytest.fixture
def broken_at_the_end(world):
    yield
    assert world.rank != 1, "rank 1 cannot clean up"


def test_assertion_in_teardown(world, broken_at_the_end):
    neighbour(world)


test_neighbour_after_teardown = neighbour


def test_killed(world):
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    neighbour(world)


test_neighbour_after_killed = neighbour


def test_segmentation_fault(world):
    if world.rank == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    neighbour(world)


test_neighbour_after_segmentation_fault = neighbour


def test_exit_with_code_0(world):
    if world.rank == 1:
        os._exit(0)
    neighbour(world)


test_neighbour_after_exit = neighbour


@pytest.fixture
def process_exit(world):
    if world.rank == 1:
        os._exit(3)


def test_process_exit_in_fixture(world, process_exit):
    pass


test_neighbour_after_process_exit = neighbour


@pytest.fixture
def system_exit(world):
    if world.rank == 1:
        raise SystemExit("leaving early")


def test_system_exit_in_fixture(world, system_exit):
    pass


test_neighbour_after_system_exit = neighbour


@pytest.fixture
def pytest_exit(world):
    if world.rank == 1:
        pytest.exit("enough of this")


def test_pytest_exit_in_fixture(world, pytest_exit):
    pass


test_neighbour_after_pytest_exit = neighbour


def test_interrupt_from_inside(world):
    if world.rank == 1:
        raise KeyboardInterrupt


test_neighbour_after_interrupt = neighbour


def test_skip_on_one_rank(world):
    if world.rank == 1:
        pytest.skip("rank 1 does not feel like it")


test_neighbour_after_skip = neighbour


def test_skip_for_different_reasons(world):
    pytest.skip(f"no device for rank {world.rank}")


def test_skip_on_all_ranks(world):
    pytest.skip("nothing to see")


class Unspeakable(Exception):
    """An exception that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_exception_that_cannot_be_printed(world):
    raise Unspeakable


test_neighbour_after_unspeakable = neighbour


def test_endless_recursion(world):
    def deeper(depth: int) -> int:
        return deeper(depth + 1)

    deeper(0)


test_neighbour_after_recursion = neighbour


def test_forked_child_comes_back(world):
    if os.fork() == 0:
        return
    os.wait()


test_neighbour_after_fork = neighbour


def test_thread_left_on_one_rank(world):
    import threading

    if world.rank == 1:
        threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()


test_neighbour_after_thread = neighbour


def test_default_group_destroyed(world):
    dist.destroy_process_group()


test_neighbour_after_destroyed_group = neighbour


@pytest.mark.own_process_group
def test_default_group_destroyed_on_purpose(world):
    dist.destroy_process_group()


test_neighbour_after_own_process_group = neighbour


def test_many_process_groups(world):
    for _ in range(50):
        dist.new_group([0, 1])


test_neighbour_after_many_groups = neighbour


@pytest.fixture(scope="session")
def sum_at_the_end(pytestconfig):
    yield
    dist.all_reduce(torch.zeros(1))


def test_collective_in_session_teardown(world, sum_at_the_end):
    neighbour(world)
