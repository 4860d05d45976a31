"""Cases that do not come to an end on two ranks, a healthy one after each."""

from __future__ import annotations

import os
import re
import signal

import pytest
import torch
import torch.distributed as dist

from hyper_parallel_tests.harness.tests.programs.neighbour import neighbour

LIMIT_S = 3


def spin() -> None:
    while True:
        pass


@pytest.mark.watchdog(LIMIT_S)
def test_hang_in_a_collective(world):
    if world.rank == 0:
        dist.all_reduce(torch.zeros(2))


test_neighbour_after_collective = neighbour


@pytest.mark.watchdog(LIMIT_S)
def test_hang_in_python_while_a_peer_waits(world):
    if world.rank == 1:
        print("about to spin")
        spin()
    dist.all_reduce(torch.zeros(2))


test_neighbour_after_python = neighbour


@pytest.fixture
def endless_at_the_end(world):
    yield
    if world.rank == 1:
        spin()


@pytest.mark.watchdog(LIMIT_S)
def test_hang_in_teardown(world, endless_at_the_end):
    neighbour(world)


test_neighbour_after_teardown = neighbour


@pytest.mark.watchdog(LIMIT_S)
def test_stopped_rank(world):
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.zeros(2))


test_neighbour_after_stopped_rank = neighbour


@pytest.mark.watchdog(LIMIT_S)
def test_hang_outside_python(world):
    if world.rank == 0:
        re.match("(a+)+$", "a" * 64 + "b")


test_neighbour_after_outside_python = neighbour


@pytest.mark.watchdog(LIMIT_S)
def test_all_ranks_wait_for_each_other(world):
    dist.recv(torch.zeros(1), src=1 - world.rank)


test_neighbour_at_the_end = neighbour
