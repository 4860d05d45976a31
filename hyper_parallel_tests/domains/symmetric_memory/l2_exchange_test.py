"""Exchanges between all ranks by one-sided communication, against collectives; and the barrier between them."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.symmetric_memory.heaps import (
    acquired,
    each_dtype,
    filled,
    stay_behind,
    values_of,
    zeros,
)
from hyper_parallel_tests.harness import World, assert_equal, contract

COUNT = 6


@pytest.fixture
def memory(engine):
    with acquired(engine) as owner:
        yield owner


def own_values(world: World, memory, dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    return values_of(world.rank, *shape, dtype=dtype, seed=seed).to(memory.device)


def gathered(engine, world: World, values: torch.Tensor) -> torch.Tensor:
    """All ranks' values by a collective."""
    found = torch.empty(world.size * values.shape[0], *values.shape[1:], dtype=values.dtype, device=values.device)
    engine.all_gather_into_tensor(found, values)
    return found


@contract("SM-2-01")
@pytest.mark.parametrize("late", ["first", "last"])
@pytest.mark.parametrize("kind", ["all_gather", "all_to_all"])
def test_next_exchange_waits_for_the_late_reader(engine, world, memory, kind, late):
    """Who goes on to the next exchange does not overwrite what a late rank has not read yet."""
    output, word = zeros(memory, world.size * COUNT), zeros(memory, 1, dtype=torch.int32)
    for turn in range(3):
        values = own_values(world, memory, torch.float32, COUNT, seed=turn)
        if kind == "all_gather":
            engine.shmem_allgather(output, values)
        else:
            engine.shmem_alltoall([values] * world.size, output, [COUNT] * world.size)
        if world.rank == (0 if late == "first" else world.size - 1):
            stay_behind(engine, word)
        # Without a collective, for which ranks would wait.
        expected = torch.cat([values_of(rank, COUNT, seed=turn) for rank in range(world.size)])
        assert_equal(output, expected, what=f"output of turn {turn}")


@contract("SM-2-01")
@each_dtype
def test_puts_to_all_ranks_are_an_all_gather(engine, world, memory, dtype):
    """Each rank puts its values at its place of every rank's tensor."""
    values = own_values(world, memory, dtype, COUNT)
    tensor = zeros(memory, world.size * COUNT, dtype=dtype)
    for there in range(world.size):
        engine.shmem_put(tensor, world.rank * COUNT, values, 0, COUNT, there)
    memory.barrier()
    assert_equal(tensor, gathered(engine, world, values), what="tensor")


@contract("SM-2-01")
@each_dtype
def test_gets_from_all_ranks_are_an_all_gather(engine, world, memory, dtype):
    """Each rank gets every rank's values."""
    values = own_values(world, memory, dtype, COUNT)
    tensor = filled(memory, values)
    memory.barrier()
    found = torch.zeros(world.size * COUNT, dtype=dtype, device=memory.device)
    for there in range(world.size):
        engine.shmem_get(found, there * COUNT, tensor, 0, COUNT, there)
    assert_equal(found, gathered(engine, world, values), what="tensor")
    memory.barrier()


@contract("SM-2-01")
@each_dtype
@pytest.mark.parametrize("shape", [(COUNT,), (2, 3)], ids=["flat", "rows"])
def test_all_gather(engine, world, memory, dtype, shape):
    """Three in a row into one tensor, each with other values, which are read in between."""
    output = memory.empty((world.size * shape[0], *shape[1:]), dtype)
    for turn in range(3):
        values = own_values(world, memory, dtype, *shape, seed=turn)
        engine.shmem_allgather(output, values)
        assert_equal(output, gathered(engine, world, values), what=f"output of turn {turn}")


def sizes_between(ranks: int, kind: str) -> list[list[int]]:
    """How many elements each rank sends to each other."""
    if kind == "even":
        return [[COUNT] * ranks for _ in range(ranks)]
    if kind == "from_one":
        return [[COUNT + target if source == 0 else 0 for target in range(ranks)] for source in range(ranks)]
    return [[(1 + 3 * source + 2 * target) % 5 for target in range(ranks)] for source in range(ranks)]


def exchanged(engine, world: World, memory, kind: str, dtype: torch.dtype, seed: int) -> None:
    """Holds an all-to-all to the collective."""
    table = sizes_between(world.size, kind)
    sent, coming = table[world.rank], [row[world.rank] for row in table]
    values = own_values(world, memory, dtype, sum(sent), seed=seed)
    room = max(sum(column) for column in zip(*table, strict=True))
    receive = zeros(memory, room, dtype=dtype)
    engine.shmem_alltoall(values.split(sent), receive, coming)
    expected = torch.zeros(sum(coming), dtype=dtype, device=memory.device)
    engine.all_to_all_single(expected, values, coming, sent)
    assert_equal(receive[: sum(coming)], expected, what="received")
    assert_equal(receive[sum(coming) :], torch.zeros(room - sum(coming), dtype=dtype), what="room that is left")
    memory.free(receive)


@contract("SM-2-01")
@each_dtype
def test_all_to_all(engine, world, memory, dtype):
    """Each rank gets what the others have for it, in the order of ranks."""
    exchanged(engine, world, memory, "even", dtype, seed=0)


@contract("SM-2-01")
@pytest.mark.parametrize("kind", ["uneven", "from_one"])
def test_all_to_all_of_different_sizes(engine, world, memory, kind):
    """Some send more, some nothing: all finds its place behind what earlier ranks send, twice in a row."""
    for turn in range(2):
        exchanged(engine, world, memory, kind, torch.float32, seed=turn)


@contract("SM-2-01")
def test_exchange_of_different_dtypes(engine, world, memory):
    """What has another dtype is refused with both, before anything is written, and the next exchange is right."""
    output = zeros(memory, world.size * COUNT)
    values = own_values(world, memory, torch.float32, COUNT)
    with pytest.raises(ValueError, match=r"bfloat16.*float32"):
        engine.shmem_allgather(output, values.bfloat16())
    with pytest.raises(ValueError, match=r"bfloat16.*float32"):
        engine.shmem_alltoall([values.bfloat16()] * world.size, output, [COUNT] * world.size)
    assert_equal(output, torch.zeros(world.size * COUNT), what="output")
    engine.shmem_allgather(output, values)
    assert_equal(output, gathered(engine, world, values), what="output")


@contract("SM-2-01")
@pytest.mark.parametrize("wrong", ["size", "room"])
def test_all_to_all_that_does_not_fit(engine, world, memory, wrong):
    """Every rank is told who sends what to whom, or where there is no room, and nothing is written."""
    receive = zeros(memory, world.size * COUNT - (wrong == "room"))
    sent = [own_values(world, memory, torch.float32, COUNT + (wrong == "size" and world.rank == 1))] * world.size
    message = (
        r"rank 1 .*\b7\b.*rank 0.*\b6\b" if wrong == "size" else rf"{world.size * COUNT}.*{world.size * COUNT - 1}"
    )
    with pytest.raises(ValueError, match=message):
        engine.shmem_alltoall(sent, receive, [COUNT] * world.size)
    memory.barrier()
    assert_equal(receive, torch.zeros(receive.shape), what="receive_tensor")


@contract("SM-2-01")
def test_all_gather_that_does_not_fit(engine, world, memory):
    """An output that has not room for exactly all inputs is refused with both sizes."""
    output = memory.empty(world.size * COUNT + 1, torch.float32)
    with pytest.raises(ValueError, match=rf"\b{COUNT}\b.*\b{world.size * COUNT + 1}\b"):
        engine.shmem_allgather(output, own_values(world, memory, torch.float32, COUNT))


@contract("SM-2-01")
def test_groups_have_memory_of_their_own(engine, world):
    """Two halves of the world exchange at once, each among its own ranks, and neither sees the other's values."""
    half = world.size // 2
    halves = [list(range(half)), list(range(half, world.size))]
    groups = [engine.new_group(ranks) for ranks in halves]
    mine = world.rank // half
    with acquired(engine, group=groups[mine]) as memory:
        tensor = zeros(memory, half * COUNT)
        values = own_values(world, memory, torch.float32, COUNT)
        for there in range(half):
            engine.shmem_put(tensor, world.rank % half * COUNT, values, 0, COUNT, there)
        memory.barrier()
        assert_equal(tensor, torch.cat([values_of(rank, COUNT) for rank in halves[mine]]), what="tensor")
        with pytest.raises(ValueError, match=rf"\b{half}\b"):
            engine.shmem_put(tensor, 0, values, 0, COUNT, half)


@contract("SM-2-01")
@pytest.mark.parametrize("late", ["first", "last", "in_turn"])
def test_barrier_holds_for_the_late_rank_in_100_rounds(engine, world, memory, late):
    """In each round the late rank writes when all others are about to wait, and whoever passes sees what it wrote."""
    tensor = zeros(memory, world.size, dtype=torch.int64)
    token = torch.zeros(1, device=world.device)
    for turn in range(1, 101):
        who = {"first": 0, "last": world.size - 1, "in_turn": turn % world.size}[late]
        for rank in range(world.size):
            if rank != who and world.rank == who:
                engine.recv(token, src=rank)
            elif rank != who and world.rank == rank:
                engine.send(token, dst=who)
        value = torch.tensor([turn], device=memory.device)
        for there in range(world.size):
            engine.shmem_put(tensor, world.rank, value, 0, 1, there)
        memory.barrier()
        assert_equal(tensor, torch.full((world.size,), turn), what=f"written before barrier {turn}")
        memory.barrier()
