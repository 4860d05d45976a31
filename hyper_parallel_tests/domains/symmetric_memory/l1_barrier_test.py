"""Whom a barrier waits for, and what it completes."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.symmetric_memory.heaps import (
    SHORT,
    acquired,
    next_rank,
    previous_rank,
    values_of,
    zeros,
)
from hyper_parallel_tests.harness import assert_equal, contract

COUNT = 8


@pytest.fixture
def memory(engine):
    with acquired(engine) as owner:
        yield owner


@contract("SM-1-01")
def test_barrier_waits_for_every_rank(engine, world, memory):
    """Whoever is early is told whom it waits for, has not come then, and passes with the others later."""
    for late in range(world.size):
        if world.rank != late:
            with pytest.raises(TimeoutError, match=rf"\[{late}\]|\[.*\b{late}\b.*\]"):
                memory.barrier(SHORT)
        engine.barrier()
        memory.barrier()


@contract("SM-1-01")
def test_barrier_completes_puts(engine, world, memory):
    """After a barrier all ranks' puts are there, without a quiet of their own; with puts held back none passes it."""
    tensor = zeros(memory, COUNT)
    with memory.transfers_held():
        values = values_of(world.rank, COUNT).to(memory.device)
        engine.shmem_put(tensor, 0, values, 0, COUNT, next_rank(world))
        with pytest.raises(TimeoutError):
            memory.barrier(SHORT)
        engine.barrier()
    memory.barrier()
    assert_equal(tensor, values_of(previous_rank(world), COUNT), what="after the barrier")
