"""Process groups from init to destroy, several times in one process."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from torch.distributed import TCPStore

from hyper_parallel_tests.harness import contract

LIMIT = timedelta(seconds=20)
REFUSAL = (ValueError, RuntimeError)


def begin_again(engine, world) -> None:
    """Destroys the default group and forms a new one around a new store on a free port."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if world.rank == 0 else None
    port = engine.broadcast_object(server.port if server else None, src=0)
    engine.destroy_process_group()
    store = server or TCPStore("127.0.0.1", port, is_master=False)
    engine.init_process_group(
        store=store, rank=world.rank, world_size=world.size, device_id=world.device, timeout=LIMIT
    )


def sum_of_ones(engine, world, group=None) -> float:
    tensor = torch.ones(1, device=world.device)
    engine.all_reduce(tensor, group=group)
    return tensor.item()


@contract("COL-1-01")
@pytest.mark.own_process_group
def test_three_lives_in_one_process(engine, world):
    """After destroy and init, three times over, collectives on the default group and on a subgroup work."""
    for _ in range(3):
        begin_again(engine, world)
        assert engine.is_initialized()
        assert engine.get_world_size() == world.size
        assert sum_of_ones(engine, world) == world.size
        halves = [engine.new_group(ranks) for ranks in ([0], list(range(1, world.size)))]
        mine = halves[min(world.rank, 1)]
        assert sum_of_ones(engine, world, mine) == engine.get_world_size(mine)


@contract("COL-1-01")
@pytest.mark.own_process_group
def test_no_group_of_an_earlier_life_is_left(engine, world):
    """A group made before destroy is unknown to the next life, whose own groups start afresh."""
    before = engine.new_group(list(range(world.size)))
    begin_again(engine, world)
    with pytest.raises((*REFUSAL, KeyError)):
        engine.get_process_group_ranks(before)
    after = engine.new_group(list(range(world.size)))
    assert after is not before
    assert engine.get_process_group_ranks(after) == list(range(world.size))
    assert sum_of_ones(engine, world, after) == world.size


@contract("COL-1-01")
@pytest.mark.own_process_group
def test_use_after_destroy_is_refused(engine, world):
    """Without a default group every use of it raises at once, and the engine says that it has none."""
    engine.destroy_process_group()
    assert not engine.is_initialized()
    uses = {
        "all_reduce": lambda: sum_of_ones(engine, world),
        "barrier": engine.barrier,
        "new_group": lambda: engine.new_group([0]),
        "get_rank": engine.get_rank,
        "get_backend": engine.get_backend,
    }
    for name, use in uses.items():
        try:
            use()
        except REFUSAL:
            continue
        pytest.fail(f"{name} did not raise")


@contract("COL-1-01")
@pytest.mark.own_process_group
@pytest.mark.watchdog(20)
def test_kept_group_is_refused_after_destroy(engine, world):
    """A collective on a group that someone kept over destroy raises: it neither works nor hangs."""
    kept = engine.new_group(list(range(world.size)), timeout=LIMIT)
    assert sum_of_ones(engine, world, kept) == world.size
    engine.destroy_process_group()
    with pytest.raises(REFUSAL):
        sum_of_ones(engine, world, kept)


@contract("COL-1-01", "COL-0-05")
@pytest.mark.own_process_group
def test_default_group_takes_the_backend_of_the_device(engine, world):
    """A default group that was made without naming a backend has the one of its device."""
    begin_again(engine, world)
    assert engine.get_backend() == engine.get_default_backend_for_device(world.device)
