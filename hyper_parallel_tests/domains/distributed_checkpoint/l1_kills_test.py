"""Ranks that are killed in the middle of a save: what was complete is complete, and what was begun is told apart."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from hyper_parallel_tests.domains.distributed_checkpoint.managed import assert_holds, empty_state, state_of
from hyper_parallel_tests.domains.distributed_checkpoint.moments import SHARD_BYTES, kill_at
from hyper_parallel_tests.domains.distributed_checkpoint.ways import WAYS
from hyper_parallel_tests.harness import contract, jobs

CARDS = 2
# Divided over the ranks, each part is larger than what a rank may write until it is killed in a write.
ROWS = 4 * SHARD_BYTES // 12

BEFORE = [("before_any_file", 0), ("before_any_file", 1), ("in_a_shard", 0), ("in_a_shard", 1), ("before_metadata", 0)]
UNTIL_COMMIT = [*BEFORE, ("behind_metadata", 0), ("before_commit", 0)]
AFTER_COMMIT = [("behind_commit", 0), ("in_a_deletion", 0)]


def named(moments):
    return {"argvalues": moments, "ids": [f"{moment}-rank_{rank}" for moment, rank in moments]}


def killed_in_a_save(world: Any, folder: Path, way: str, moment: str, at: int, victims: str, **options: Any) -> None:
    """Saves step 10, then begins to save step 20; when a rank comes to a moment, it kills."""
    engine = world.engine
    save = (engine.CheckpointManager(folder, **options) if options else WAYS[way](engine, folder)).save
    save(10, state_of(engine, world, 10, ROWS))
    pids: list[int] = [0] * world.size
    dist.all_gather_object(pids, os.getpid())
    own = pids.pop(world.rank)
    if moment == "in_a_shard":
        if world.rank == at or victims == "all":
            kill_at(moment, folder, 20, [])
    elif world.rank == at:
        kill_at(moment, folder, 20, {"one": [own], "others": pids, "all": [*pids, own]}[victims])
    dist.barrier()
    save(20, state_of(engine, world, 20, ROWS))


def found(world: Any, folder: Path) -> tuple[list[int], list[int]]:
    """What a new launch finds: complete steps, each of which it loads, and incomplete ones."""
    engine = world.engine
    with engine.CheckpointManager(folder) as manager:
        for step in manager.steps():
            state = empty_state(engine, world, ROWS)
            try:
                manager.load(state, step)
            except engine.CheckpointError as error:
                raise AssertionError(f"step {step} counts as complete, but: {error}") from error
            assert_holds(engine, world, state, step, ROWS)
        return manager.steps(), manager.incomplete()


def saved_again(world: Any, folder: Path) -> tuple[list[int], list[int]]:
    """What is there after a new launch has saved step 20 once more, or else step 30."""
    engine = world.engine
    with engine.CheckpointManager(folder, keep_latest_k=2) as manager:
        step = 30 if 20 in manager.steps() else 20
        manager.save(step, state_of(engine, world, step, ROWS))
        return manager.steps(), manager.incomplete()


def assert_killed(ended, at, victims):
    """Those who were to be killed were, and the others, if any, have told of it and not waited."""
    gone = {"one": {at}, "others": {1 - at}, "all": {0, 1}}[victims]
    for rank, one in enumerate(ended):
        if rank in gone:
            assert one.exit in (-signal.SIGKILL, -signal.SIGXFSZ), one
        else:
            assert "step 20" in one.error, one


each_moment = pytest.mark.parametrize(("moment", "at"), **named(UNTIL_COMMIT))


@contract("CK-1-03")
@pytest.mark.parametrize("victims", ["one", "all"])
@each_moment
def test_previous_checkpoint_stays(world, tmp_path, moment, at, victims):
    """One rank or all are killed before the commit: the one before loads, the new one does not count."""
    ended = jobs.watch(world, killed_in_a_save, tmp_path, "manager", moment, at, victims, cards=CARDS, limit=30)
    assert_killed(ended, at, victims)
    [(steps, incomplete), _] = jobs.run(world, found, tmp_path, cards=CARDS)
    assert steps == [10]
    left = [one.name for one in tmp_path.iterdir() if one.name.endswith("step-20")]
    assert incomplete == ([20] if left else [])


@contract("CK-1-03")
@pytest.mark.parametrize("moment", ["before_metadata", "behind_metadata"])
def test_peer_of_the_one_who_writes(world, tmp_path, moment):
    """A rank is killed while the other one writes metadata or manifest: that one says so."""
    ended = jobs.watch(world, killed_in_a_save, tmp_path, "manager", moment, 0, "others", cards=CARDS, limit=30)
    assert_killed(ended, 0, "others")
    [(steps, _), _] = jobs.run(world, found, tmp_path, cards=CARDS)
    assert steps in ([10], [10, 20])


@contract("CK-1-03")
@pytest.mark.parametrize(("moment", "at"), **named(AFTER_COMMIT))
def test_new_checkpoint_stays(world, tmp_path, moment, at):
    """Killed behind the commit, while the old one is deleted: the new one loads."""
    killed = jobs.watch(world, deleting, tmp_path, moment, at, cards=CARDS, limit=30)
    assert_killed(killed, at, "all")
    [(steps, incomplete), _] = jobs.run(world, found, tmp_path, cards=CARDS)
    assert steps in ([10, 20], [20])
    assert incomplete == []


def deleting(world: Any, folder: Path, moment: str, at: int) -> None:
    """Is killed in a save behind which an old checkpoint is deleted."""
    killed_in_a_save(world, folder, "manager", moment, at, "all", keep_latest_k=1)


@contract("CK-1-03")
@pytest.mark.parametrize(("moment", "at"), **named([("in_a_shard", 1), ("before_commit", 0), ("in_a_deletion", 0)]))
def test_next_launch_saves(world, tmp_path, moment, at):
    """The next launch saves as if nothing had been left behind."""
    jobs.watch(world, deleting, tmp_path, moment, at, cards=CARDS, limit=30)
    [(steps, incomplete), _] = jobs.run(world, saved_again, tmp_path, cards=CARDS)
    assert steps in ([10, 20], [20, 30])
    assert incomplete == []
    assert not [one.name for one in tmp_path.iterdir() if one.name.startswith((".incomplete", ".deleted"))]


def plainly_found(world: Any, folder: Path, name: str = "step-20") -> tuple[str, bool]:
    """What a plain load of a step that was not saved says, and whether it has left alone what it was to fill."""
    engine = world.engine
    state = empty_state(engine, world, ROWS)
    said = "loaded"
    try:
        engine.load(state, checkpoint_id=folder / name)
    except engine.CheckpointException as error:
        said = str(error)
    try:
        assert_holds(engine, world, state, -1, ROWS)
    except AssertionError:
        return said, False
    return said, True


def plainly_loaded(world: Any, folder: Path, step: int) -> None:
    state = empty_state(world.engine, world, ROWS)
    world.engine.load(state, checkpoint_id=folder / f"step-{step}")
    assert_holds(world.engine, world, state, step, ROWS)


@contract("CK-1-03")
@pytest.mark.parametrize("victims", ["one", "all"])
@pytest.mark.parametrize(("moment", "at"), **named(BEFORE))
def test_plain_save(world, tmp_path, moment, at, victims):
    """Without a manager, each save in a folder of its own: the one that was killed has no metadata and says so."""
    ended = jobs.watch(world, killed_in_a_save, tmp_path, "dcp", moment, at, victims, cards=CARDS, limit=30)
    gone = {"one": {at}, "all": {0, 1}}[victims]
    assert {rank for rank, one in enumerate(ended) if one.exit < 0} == gone
    assert all(one.error for rank, one in enumerate(ended) if rank not in gone)
    [(said, unchanged), _] = jobs.run(world, plainly_found, tmp_path, cards=CARDS)
    assert "metadata" in said
    assert unchanged
    jobs.run(world, plainly_loaded, tmp_path, 10, cards=CARDS)


def killed_while_overwriting(world: Any, folder: Path) -> None:
    """Saves to a folder twice, and is killed when all of the second but its metadata is written."""
    engine = world.engine
    engine.save(state_of(engine, world, 10, ROWS), checkpoint_id=folder / "last")
    if world.rank == 0:
        kill_at("before_metadata", folder, 20, [os.getpid()])
    dist.barrier()
    engine.save(state_of(engine, world, 20, ROWS), checkpoint_id=folder / "last")


@contract("CK-1-03")
def test_plain_save_over_another(world, tmp_path):
    """Without a manager, a save over the one before that is killed leaves no folder that loads as if it were whole."""
    ended = jobs.watch(world, killed_while_overwriting, tmp_path, cards=CARDS, limit=30)
    assert [one.exit < 0 for one in ended] == [True, False]
    [(said, unchanged), _] = jobs.run(world, plainly_found, tmp_path, "last", cards=CARDS)
    assert said != "loaded"
    assert unchanged
