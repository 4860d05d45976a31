"""One rank never comes to a collective."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch

from hyper_parallel_tests.harness import assert_equal, contract

# Ranks start together after a barrier: this is time enough for all who come, also on a busy machine.
PATIENCE = timedelta(seconds=3)


@contextmanager
def impatient_group(engine, world, **options):
    """A group of all ranks with a short timeout. At the end all ranks have met again and it is gone."""
    group = engine.new_group(list(range(world.size)), timeout=PATIENCE, **options)
    engine.barrier()
    try:
        yield group
    finally:
        engine.barrier()
        engine.destroy_process_group(group)


def call(engine, world, name: str, group) -> None:
    tensor = torch.ones(8, device=world.device)
    parts = [torch.ones(8, device=world.device) for _ in range(world.size)]
    calls = {
        "all_reduce": lambda: engine.all_reduce(tensor, group=group),
        "all_gather": lambda: engine.all_gather(parts, tensor, group=group),
        "barrier": lambda: engine.barrier(group),
    }
    calls[name]()


@contract("COL-1-05")
@pytest.mark.watchdog(25)
@pytest.mark.parametrize("name", ["all_reduce", "barrier"])
def test_waiting_ends_in_an_error(engine, world, name):
    """When the last rank never joins, the collective raises on all others within the group's timeout."""
    with impatient_group(engine, world) as group:
        if world.rank != world.size - 1:
            with pytest.raises(RuntimeError):
                call(engine, world, name, group)


@contract("COL-1-05")
@pytest.mark.watchdog(25)
@pytest.mark.parametrize(("name", "absent"), [("all_reduce", "last"), ("all_gather", "first")])
def test_report_names_the_collective_and_the_absent_rank(engine, world, name, absent):
    """In a verified group every rank that came gets an error naming the collective and the absent rank."""
    missing = 0 if absent == "first" else world.size - 1
    with impatient_group(engine, world, verified=True) as group:
        if world.rank != missing:
            with pytest.raises(RuntimeError, match=rf"{name}\b.*\brank {missing} did not join"):
                call(engine, world, name, group)


@contract("COL-1-05")
@pytest.mark.watchdog(25)
def test_rank_in_another_collective_is_reported(engine, world):
    """A rank in another collective of a verified group is reported on every rank, with both names."""
    with impatient_group(engine, world, verified=True) as group:
        name = "all_gather" if world.rank == world.size - 1 else "all_reduce"
        with pytest.raises(RuntimeError, match=rf"0: 'all_reduce'.*{world.size - 1}: 'all_gather'"):
            call(engine, world, name, group)


@contract("COL-1-05")
@pytest.mark.watchdog(25)
def test_verified_group_works(engine, world):
    """When all ranks come, a verified group does the same as any other, time after time."""
    with impatient_group(engine, world, verified=True) as group:
        for value in range(1, 4):
            tensor = torch.full((8,), float(value), device=world.device)
            engine.all_reduce(tensor, group=group)
            assert_equal(tensor, torch.full_like(tensor, value * world.size), what="tensor")
