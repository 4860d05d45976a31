"""Cases that hold the calculator to its contracts in jobs."""

from __future__ import annotations

import torch.distributed as dist

from hyper_parallel_tests.harness import contract, jobs
from hyper_parallel_tests.harness.tests.programs import calculator

NUMBERS = (1, 2, 3)


def total(world) -> int:
    found = calculator.total(NUMBERS)
    dist.barrier()
    return found


def hold(world) -> None:
    assert calculator.total(NUMBERS) == 6


@contract("DEMO-RESULT")
def test_result_of_a_job(world):
    assert jobs.run(world, total, cards=2) == [6, 6]


@contract("DEMO-INSIDE")
def test_assertion_in_a_job(world):
    jobs.run(world, hold, cards=2)


@contract("DEMO-WATCHED")
def test_watched_job(world):
    assert [one.exit for one in jobs.watch(world, total, cards=2)] == [0, 0]
