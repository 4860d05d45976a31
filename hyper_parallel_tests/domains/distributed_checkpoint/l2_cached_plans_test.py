"""Saves whose plans are kept from one to the next, on two ranks."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.distributed_checkpoint.plans import Placed, numbered, placed_on
from hyper_parallel_tests.domains.distributed_checkpoint.setting import shared_folder
from hyper_parallel_tests.harness import assert_equal, contract

LAYOUTS = {"rows": (0,), "columns": (1,), "replicas": (None,), "plain": None}


@pytest.fixture(autouse=True)
def _no_plan_at_first(engine):
    with engine.save_plan_cache_cleared():
        yield


def save(engine, folder, state):
    engine.save(state, checkpoint_id=folder, planner=engine.StandardSavePlanner(enable_plan_caching=True))


def on_mesh(engine, world, whole, dims):
    return placed_on(engine, world.mesh(dp=world.size), Placed(whole, dims))


def loaded(engine, folder, size):
    state = {"t": torch.zeros(size)}
    engine.load(state, checkpoint_id=folder)
    return state["t"]


@contract("CK-0-01", "CK-2-01")
@pytest.mark.parametrize("second", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS.values(), ids=LAYOUTS)
def test_other_layout(engine, world, first, second):
    """A tensor is saved with its present values as it lies now, however it lay at the last save."""
    with shared_folder(world) as folder:
        for turn, layout in enumerate((first, second, first)):
            whole = numbered(5, 4) + turn
            save(engine, folder / str(turn), {"t": on_mesh(engine, world, whole, layout)})
            assert_equal(loaded(engine, folder / str(turn), (5, 4)), whole)


@contract("CK-0-01", "CK-2-01")
@pytest.mark.parametrize("changing", [0, 1])
def test_one_rank_has_another_key(engine, world, changing):
    """A key that one rank alone has, and not at each save, is in the checkpoints that it belongs into."""
    with shared_folder(world) as folder:
        for turn, there in enumerate((False, True, False, True)):
            whole = numbered(5, 4) + turn
            state = {"t": on_mesh(engine, world, whole, (0,))}
            if there and world.rank == changing:
                state["own"] = turn
            save(engine, folder / str(turn), state)
            keys = set(engine.read_checkpoint_metadata(folder / str(turn)).state_dict_metadata)
            assert keys == ({"t", "own"} if there else {"t"})
            assert_equal(loaded(engine, folder / str(turn), (5, 4)), whole)
