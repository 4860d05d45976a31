"""When what a rank writes into another's memory is there."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.symmetric_memory.heaps import (
    SHORT,
    acquired,
    filled,
    next_rank,
    previous_rank,
    values_of,
    zeros,
)
from hyper_parallel_tests.harness import assert_equal, contract

COUNT = 8

# What is wrong with a call that moves four elements, and what its error names.
WRONG = {
    "target_end": ({"target_offset": COUNT - 3}, rf"{COUNT - 3} to {COUNT + 1}.*{COUNT}"),
    "src_end": ({"src_offset": COUNT - 3}, rf"{COUNT - 3} to {COUNT + 1}.*{COUNT}"),
    "target_begin": ({"target_offset": -1}, "-1"),
    "src_begin": ({"src_offset": -1}, "-1"),
    "size": ({"size": -1}, "-1"),
    "high_rank": ({"target_rank": 8}, r"\b8\b"),
    "low_rank": ({"target_rank": -1}, "-1"),
    "dtype": ({"dtype": torch.bfloat16}, "bfloat16.*float32|float32.*bfloat16"),
    "strided": ({"strided": True}, "(?i)contiguous"),
    "ordinary": ({"ordinary": True}, "(?i)symmetric"),
}


@pytest.fixture
def memory(engine):
    with acquired(engine) as owner:
        yield owner


def read(engine, memory, tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """What a rank's memory holds now."""
    found = torch.zeros(tensor.shape, dtype=tensor.dtype, device=memory.device)
    engine.shmem_get(found, 0, tensor, 0, tensor.numel(), rank)
    return found


def put(engine, tensor: torch.Tensor, values: torch.Tensor, rank: int) -> None:
    engine.shmem_put(tensor, 0, values.to(tensor.device), 0, values.numel(), rank)


def put_with_signal(engine, world, tensor: torch.Tensor, signal: torch.Tensor) -> None:
    """Writes this rank's values and then 1 into the next rank's memory."""
    values = values_of(world.rank, COUNT).to(tensor.device)
    engine.shmem_put_with_signal(tensor, 0, values, 0, COUNT, signal, 0, 1, "set", next_rank(world))


@contract("SM-1-01")
def test_data_is_there_after_the_signal(engine, world, memory):
    """Who has waited for a put's signal reads all of its data, each time."""
    tensor, signal = zeros(memory, COUNT), zeros(memory, 1, dtype=torch.int32)
    source = previous_rank(world)
    for turn in range(1, 51):
        values = values_of(world.rank, COUNT, seed=turn).to(memory.device)
        engine.shmem_put_with_signal(tensor, 0, values, 0, COUNT, signal, 0, turn, "set", next_rank(world))
        engine.shmem_wait_for_signal(signal, 0, turn, source_rank=source)
        assert_equal(tensor, values_of(source, COUNT, seed=turn), what=f"data of turn {turn}")
        memory.barrier()


@contract("SM-1-01")
def test_reading_early_shows_the_old_values(engine, world, memory):
    """A put that is under way has changed nothing, and returns before it has; when it goes on, its data arrives."""
    tensor, signal = zeros(memory, COUNT), zeros(memory, 1, dtype=torch.int32)
    with memory.transfers_held():
        put_with_signal(engine, world, tensor, signal)
        engine.barrier()
        assert_equal(tensor, torch.zeros(COUNT), what="read early")
        assert_equal(signal, torch.zeros(1, dtype=torch.int32), what="signal")
        engine.barrier()
    source = previous_rank(world)
    engine.shmem_wait_for_signal(signal, 0, 1, source_rank=source)
    assert_equal(tensor, values_of(source, COUNT), what="read after the signal")


@contract("SM-1-01")
def test_signal_comes_after_its_data(engine, world, memory):
    """Of a put with signal the data arrives first: when it is there the signal is not yet."""
    tensor, signal = zeros(memory, COUNT), zeros(memory, 1, dtype=torch.int32)
    there = next_rank(world)
    with memory.transfers_held() as held:
        put_with_signal(engine, world, tensor, signal)
        held.deliver()
        assert_equal(read(engine, memory, tensor, there), values_of(world.rank, COUNT), what="data")
        assert_equal(read(engine, memory, signal, there), torch.zeros(1, dtype=torch.int32), what="signal before")
        held.deliver()
        assert_equal(read(engine, memory, signal, there), torch.ones(1, dtype=torch.int32), what="signal after")
    memory.barrier()


@contract("SM-1-01")
def test_quiet_waits_for_own_puts(engine, world, memory):
    """While puts are under way quiet does not return, and says how many they are and where; then all are done."""
    tensor = zeros(memory, 3, COUNT)
    there = next_rank(world)
    values = values_of(world.rank, 3, COUNT)
    with memory.transfers_held() as held:
        for row in range(3):
            put(engine, tensor[row], values[row], there)
        with pytest.raises(TimeoutError, match=rf"3 .*\[{there}\]"):
            memory.quiet(SHORT)
        held.deliver(2)
        with pytest.raises(TimeoutError, match=rf"1 .*\[{there}\]"):
            memory.quiet(SHORT)
    memory.quiet()
    assert_equal(read(engine, memory, tensor, there), values, what="after quiet")
    memory.barrier()


@contract("SM-1-01")
def test_quiet_completes_signals(engine, world, memory):
    """Quiet waits for signals without data too."""
    signal = zeros(memory, 1, dtype=torch.int32)
    with memory.transfers_held():
        engine.shmem_signal_op(signal, 0, 7, "set", next_rank(world))
        with pytest.raises(TimeoutError):
            memory.quiet(SHORT)
    memory.quiet()
    assert int(read(engine, memory, signal, next_rank(world))) == 7
    memory.barrier()


@contract("SM-1-01")
def test_fence_orders_puts(engine, world, memory):
    """What was put after a fence arrives after what was put before, and so stays; three times at one place."""
    tensor = zeros(memory, COUNT)
    there = next_rank(world)
    with memory.transfers_held() as held:
        for turn in range(3):
            put(engine, tensor, values_of(world.rank, COUNT, seed=turn), there)
            memory.fence()
        for turn in range(3):
            held.deliver()
            assert_equal(
                read(engine, memory, tensor, there), values_of(world.rank, COUNT, seed=turn), what=f"turn {turn}"
            )
    memory.barrier()


@contract("SM-1-01")
def test_fence_orders_signals_after_data(engine, world, memory):
    """A signal after a fence tells of the puts before it, as many as they are."""
    tensor, signal = zeros(memory, 4, COUNT), zeros(memory, 1, dtype=torch.int32)
    there = next_rank(world)
    values = values_of(world.rank, 4, COUNT)
    with memory.transfers_held() as held:
        for row in range(4):
            put(engine, tensor[row], values[row], there)
        memory.fence()
        engine.shmem_signal_op(signal, 0, 1, "set", there)
        held.deliver(4)
        assert_equal(read(engine, memory, tensor, there), values, what="data before the signal")
        assert int(read(engine, memory, signal, there)) == 0
    memory.barrier()
    assert int(signal) == 1


@contract("SM-1-01")
def test_source_may_change_after_a_put(engine, world, memory):
    """A put that is under way brings the values of the time of the call."""
    tensor = zeros(memory, COUNT)
    source = values_of(world.rank, COUNT).to(memory.device)
    with memory.transfers_held():
        engine.shmem_put(tensor, 0, source, 0, COUNT, next_rank(world))
        source.zero_()
    memory.barrier()
    assert_equal(tensor, values_of(previous_rank(world), COUNT), what="arrived")


@contract("SM-1-01")
def test_get_reads_the_other_ranks_memory(engine, world, memory):
    """A get has the values on return: those that the other rank left there, and later new ones."""
    tensor = filled(memory, values_of(world.rank, COUNT))
    for turn in range(3):
        memory.barrier()
        for rank in range(world.size):
            found = read(engine, memory, tensor, rank)
            assert_equal(found, values_of(rank, COUNT, seed=turn), what=f"memory of rank {rank} in turn {turn}")
        memory.barrier()
        tensor.copy_(values_of(world.rank, COUNT, seed=turn + 1))


@contract("SM-1-01")
def test_put_touches_nothing_else(engine, world, memory):
    """Of a put in the middle of a tensor, from the middle of another, exactly the elements asked for arrive."""
    before, tensor, after = (filled(memory, values_of(9, COUNT)) for _ in range(3))
    memory.barrier()
    source = values_of(world.rank, COUNT).to(memory.device)
    engine.shmem_put(tensor, 3, source, 1, 2, next_rank(world))
    memory.barrier()
    expected = values_of(9, COUNT)
    expected[3:5] = values_of(previous_rank(world), COUNT)[1:3]
    assert_equal([before, tensor, after], [values_of(9, COUNT), expected, values_of(9, COUNT)], what="neighbourhood")


@contract("SM-1-01")
def test_get_touches_nothing_else(engine, world, memory):
    """Of a get exactly the elements asked for change here, and nothing there."""
    there = next_rank(world)
    tensor = filled(memory, values_of(world.rank, COUNT))
    memory.barrier()
    found = values_of(9, COUNT).to(memory.device)
    engine.shmem_get(found, 3, tensor, 1, 2, there)
    expected = values_of(9, COUNT)
    expected[3:5] = values_of(there, COUNT)[1:3]
    assert_equal(found, expected, what="got")
    memory.barrier()
    assert_equal(tensor, values_of(world.rank, COUNT), what="read by another rank")


@contract("SM-1-01")
def test_place_is_the_same_after_other_tensors_came_and_went(engine, world, memory):
    """On every rank a tensor is at one place of the heap, also where it took that of one that was given back."""
    tensors = [memory.empty(COUNT * (1 + number), torch.float32) for number in range(4)]
    for number in (2, 0):
        memory.free(tensors[number])
    tensor = zeros(memory, COUNT)
    put(engine, tensor, values_of(world.rank, COUNT), next_rank(world))
    memory.barrier()
    assert_equal(tensor, values_of(previous_rank(world), COUNT), what="arrived")


@contract("SM-1-01")
def test_ranks_that_ask_for_different_sizes(engine, world, memory):
    """Every rank is told, with all sizes, and nothing is taken: the next tensor is at one place again."""
    with pytest.raises(ValueError, match=rf"(?s){4 * COUNT}.*{4 * COUNT + 4}"):
        memory.empty(COUNT + min(world.rank, 1), torch.float32)
    tensor = zeros(memory, COUNT)
    put(engine, tensor, values_of(world.rank, COUNT), next_rank(world))
    memory.barrier()
    assert_equal(tensor, values_of(previous_rank(world), COUNT), what="arrived")


@contract("SM-1-01")
def test_ranks_that_give_back_different_tensors(engine, world, memory):
    """Every rank is told, and all tensors stay as they are."""
    tensors = [filled(memory, values_of(number, COUNT)) for number in range(2)]
    with pytest.raises(ValueError, match="(?i)different"):
        memory.free(tensors[min(world.rank, 1)])
    assert_equal(tensors, [values_of(number, COUNT) for number in range(2)], what="tensors")
    for tensor in tensors:
        memory.free(tensor)


@contract("SM-1-01")
@pytest.mark.parametrize("call", ["shmem_put", "shmem_get"])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments(engine, memory, call, wrong):
    """A range that leaves a tensor, an unknown rank, and tensors that do not fit are refused, and nothing moves."""
    change, message = WRONG[wrong]
    symmetric = filled(memory, values_of(1, COUNT))
    numbers = {"target_offset": 0, "src_offset": 0, "size": 4, "target_rank": 0} | change
    local = values_of(2, 2 * COUNT)[::2] if numbers.pop("strided", False) else values_of(2, COUNT)
    local = local.to(memory.device, numbers.pop("dtype", torch.float32))
    if numbers.pop("ordinary", False):
        target, src = local, local.clone()
    else:
        target, src = (symmetric, local) if call == "shmem_put" else (local, symmetric)
    kept = local.clone()
    with pytest.raises(ValueError, match=message):
        getattr(engine, call)(target, src=src, **numbers)
    memory.barrier()
    assert_equal([symmetric, local], [values_of(1, COUNT), kept], what="tensors")
