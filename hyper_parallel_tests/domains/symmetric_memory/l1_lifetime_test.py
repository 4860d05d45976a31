"""What becomes of puts that are under way when their tensor or its memory is given back."""

from __future__ import annotations

import torch

from hyper_parallel_tests.domains.symmetric_memory.heaps import acquired, next_rank, values_of, zeros
from hyper_parallel_tests.harness import assert_equal, contract

COUNT, ROWS = 8, 16


@contract("SM-1-01")
def test_free_waits_for_puts(engine, world):
    """No put to a tensor that was given back reaches the one that took its place."""
    with acquired(engine) as memory:
        tensor = zeros(memory, ROWS, COUNT)
        place = tensor.data_ptr()
        values = values_of(world.rank, COUNT).to(memory.device)
        for row in range(ROWS):
            engine.shmem_put(tensor, row * COUNT, values, 0, COUNT, next_rank(world))
        memory.free(tensor)
        successor = zeros(memory, ROWS, COUNT)
        assert successor.data_ptr() == place
        assert_equal(successor, torch.zeros(ROWS, COUNT), what="successor")


@contract("SM-1-01")
def test_close_completes_puts(engine, world):
    """What is under way when a rank ends its memory arrives where it is open still."""
    with acquired(engine) as memory:
        tensor = zeros(memory, COUNT)
        if world.rank == 0:
            with memory.transfers_held():
                engine.shmem_put(tensor, 0, values_of(0, COUNT).to(memory.device), 0, COUNT, world.size - 1)
                memory.close()
        engine.barrier()
        if world.rank == world.size - 1:
            assert_equal(tensor, values_of(0, COUNT), what="arrived")
