"""Words that ranks set, add to and wait for."""

from __future__ import annotations

import operator
from datetime import timedelta

import pytest
import torch

from hyper_parallel_tests.domains.symmetric_memory.heaps import (
    SHORT,
    acquired,
    next_rank,
    previous_rank,
    zeros,
)
from hyper_parallel_tests.harness import contract

COMPARISONS = ("eq", "ne", "gt", "ge", "lt", "le")
WORD = 2


@pytest.fixture
def memory(engine):
    with acquired(engine) as owner:
        yield owner


@pytest.fixture
def signal(memory):
    return zeros(memory, 4, dtype=torch.int32)


@contract("SM-1-01")
@pytest.mark.parametrize("compare_op", COMPARISONS)
@pytest.mark.parametrize("found", [-3, 4, 5, 6], ids=lambda found: f"found_{found}")
def test_wait_ends_exactly_when_its_comparison_holds(engine, world, memory, signal, compare_op, found):
    """Held to 5, a word below, equal or above ends the wait and is returned, or does not and is an error."""
    engine.shmem_signal_op(signal, WORD, found, "set", next_rank(world))
    memory.barrier()
    holds = getattr(operator, compare_op)(found, 5)
    try:
        returned = engine.shmem_wait_for_signal(signal, WORD, 5, compare_op, timeout=SHORT)
    except TimeoutError:
        returned = None
    assert returned == (found if holds else None)


@contract("SM-1-01")
@pytest.mark.parametrize("compare_op", ["eq", "ge", "gt"])
def test_wait_goes_on_until_it_holds(engine, world, memory, signal, compare_op):
    """After the first of two additions the wait has not ended, after the second it has."""
    value = 1 if compare_op == "gt" else 2
    there, source = next_rank(world), previous_rank(world)
    with memory.transfers_held() as held:
        for _ in range(2):
            engine.shmem_signal_op(signal, WORD, 1, "add", there)
        held.deliver()
        engine.barrier()
        with pytest.raises(TimeoutError, match="found 1"):
            engine.shmem_wait_for_signal(signal, WORD, value, compare_op, source_rank=source, timeout=SHORT)
        engine.barrier()
    assert engine.shmem_wait_for_signal(signal, WORD, value, compare_op, source_rank=source) == 2


@contract("SM-1-01")
def test_wait_that_runs_out_tells_all(engine, world, memory, signal):
    """The error has the word, what was expected of it and found in it, and who waited for whom, and comes in time."""
    engine.shmem_signal_op(signal, WORD, 3, "set", next_rank(world))
    memory.barrier()
    source = previous_rank(world)
    with pytest.raises(TimeoutError) as refusal:
        engine.shmem_wait_for_signal(signal, WORD, 7, "ge", source_rank=source, timeout=timedelta(milliseconds=50))
    for part in (f"word {WORD}", "ge 7", "found 3", f"rank {world.rank} ", f"rank {source}:", "0.05 s"):
        assert part in str(refusal.value), f"{part!r} is missing in: {refusal.value}"


@contract("SM-1-01")
def test_no_addition_of_several_ranks_is_lost(engine, world, memory, signal):
    """All ranks add to one word of each rank at once, each another number; it has their sum."""
    turns = 100
    memory.barrier()
    for _ in range(turns):
        for there in range(world.size):
            engine.shmem_signal_op(signal, WORD, 10**world.rank, "add", there)
    memory.barrier()
    assert int(signal[WORD]) == turns * sum(10**rank for rank in range(world.size))


@contract("SM-1-01")
def test_additions_with_data_count_what_has_come(engine, world, memory, signal):
    """A word that each put adds to reaches the number of puts of all ranks, and then all their data is there."""
    puts = 20
    tensor = zeros(memory, world.size, puts)
    ones = torch.ones(puts, device=memory.device)
    for there in range(world.size):
        for place in range(puts):
            position = world.rank * puts + place
            engine.shmem_put_with_signal(tensor, position, ones, place, 1, signal, WORD, 1, "add", there)
    assert engine.shmem_wait_for_signal(signal, WORD, world.size * puts) == world.size * puts
    assert int(tensor.sum()) == world.size * puts


@contract("SM-1-01")
def test_set_takes_the_place_of_what_was_there(engine, world, memory, signal):
    """What is set does not depend on what was there; what is added afterwards, of either sign, counts from it."""
    there = next_rank(world)
    for signal_op, value in (("add", 5), ("set", -2), ("add", 10), ("add", -20)):
        engine.shmem_signal_op(signal, WORD, value, signal_op, there)
        memory.fence()
    memory.barrier()
    assert signal.tolist() == [0, 0, -12, 0]


@contract("SM-1-01")
def test_arithmetic_wraps_around(engine, world, memory, signal):
    """Behind the largest number of a word comes the smallest, as in any counter of 32 bits."""
    engine.shmem_signal_op(signal, WORD, 2**31 - 1, "set", next_rank(world))
    memory.fence()
    engine.shmem_signal_op(signal, WORD, 2, "add", next_rank(world))
    memory.barrier()
    assert signal.tolist() == [0, 0, 1 - 2**31, 0]


@contract("SM-1-01")
def test_words_are_apart(engine, world, memory, signal):
    """Each word of each rank has what was sent to it."""
    for there in range(world.size):
        for word in range(4):
            engine.shmem_signal_op(signal, word, 10 * there + word, "add", there)
    memory.barrier()
    assert signal.tolist() == [world.size * (10 * world.rank + word) for word in range(4)]


@contract("SM-1-01")
@pytest.mark.parametrize("call", ["shmem_signal_op", "shmem_wait_for_signal"])
@pytest.mark.parametrize("wrong", ["word", "negative_word", "operation", "dtype", "ordinary"])
def test_wrong_arguments(engine, memory, signal, call, wrong):
    """A word that is not there, an unknown operation or comparison, and what is no signal are refused and named."""
    operation = "set" if call == "shmem_signal_op" else "eq"
    arguments = {
        "word": (signal, 4, 1, operation),
        "negative_word": (signal, -1, 1, operation),
        "operation": (signal, 0, 1, "swap"),
        "dtype": (memory.empty(4, torch.int64), 0, 1, operation),
        "ordinary": (torch.zeros(4, dtype=torch.int32), 0, 1, operation),
    }[wrong]
    message = {
        "word": r"\b4\b",
        "negative_word": "-1",
        "operation": "swap",
        "dtype": "int64",
        "ordinary": "(?i)symmetric",
    }[wrong]
    with pytest.raises(ValueError, match=message):
        getattr(engine, call)(*arguments)


@contract("SM-1-01")
@pytest.mark.parametrize("rank", [-1, 8])
def test_signal_to_an_unknown_rank(engine, world, memory, signal, rank):
    """It is refused with the rank, and neither word nor data of any rank changes."""
    tensor = zeros(memory, 2)
    with pytest.raises(ValueError, match=str(rank)):
        engine.shmem_signal_op(signal, 0, 1, "add", rank)
    with pytest.raises(ValueError, match=str(rank)):
        engine.shmem_put_with_signal(tensor, 0, torch.ones(2), 0, 2, signal, 0, 1, "add", rank)
    memory.barrier()
    assert signal.tolist() == [0] * 4
    assert tensor.tolist() == [0.0] * 2
