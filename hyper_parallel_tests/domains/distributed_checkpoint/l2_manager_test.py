"""When the manager saves, what it keeps, what it takes for a checkpoint, and which one it loads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hyper_parallel_tests.domains.distributed_checkpoint.managed import (
    empty_state,
    filled_folder,
    holding,
    on_rank_0,
    state_of,
)
from hyper_parallel_tests.domains.distributed_checkpoint.setting import shared_folder
from hyper_parallel_tests.harness import contract

NO_STEPS = {
    "word": "step-abc",
    "no_number": "step-",
    "leading_zero": "step-0900",
    "negative": "step--900",
    "suffix": "step-900.tmp",
    "prefix": "last-step-900",
    "space": "step-900 ",
    "capital": "Step-900",
    "other_digits": "step-٩٠٠",
    "other_separator": "step_900",
}


@contract("CK-2-03")
def test_interval(engine, world):
    """A step is saved if it is a multiple of the interval, or if it is forced."""
    with filled_folder(engine, world, interval=4) as (manager, _):
        saved = [step for step in range(1, 11) if manager.save(step, state_of(engine, world, step))]
        assert manager.save(11, state_of(engine, world, 11), force=True)
        assert (saved, manager.steps()) == ([4, 8], [4, 8, 11])


@contract("CK-2-03")
@pytest.mark.parametrize(
    "options", [{"interval": 0}, {"interval": -1}, {"keep_latest_k": 0}, {"keep_latest_k": -1}], ids=str
)
def test_numbers_below_one(engine, world, options):
    """An interval or a number to keep below one is refused by its name."""
    with shared_folder(world) as folder, pytest.raises(ValueError, match=next(iter(options))):
        engine.CheckpointManager(folder, **options)


@contract("CK-2-03")
@pytest.mark.parametrize(("keep", "left"), [(1, [4]), (2, [3, 4]), (4, [1, 2, 3, 4]), (None, [1, 2, 3, 4])], ids=str)
def test_newest_are_kept(engine, world, keep, left):
    """Of complete checkpoints the newest K are kept, and each still loads."""
    with filled_folder(engine, world, 1, 2, 3, 4, keep_latest_k=keep) as (manager, _):
        assert manager.steps() == left
        assert [holding(engine, world, manager, step) for step in left] == left


@contract("CK-2-03")
def test_newest_are_those_with_the_highest_numbers(engine, world):
    """What is kept goes by the number: not by the name, and not by when it was saved or touched."""
    with filled_folder(engine, world, 100, 9, keep_latest_k=2) as (manager, _):
        on_rank_0(world, os.utime, manager.path(9), (2e9, 2e9))
        assert manager.save(10, state_of(engine, world, 10))
        assert manager.steps() == [10, 100]


class Looking:
    """A value that looks at the folder when it is written."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return set, (sorted(one.name for one in self.folder.glob("step-*")),)


def save_and_wait(manager, step, state):
    manager.save(step, state)
    manager.wait()


class Refusing:
    """A value that can be copied, but cannot be written."""

    def __deepcopy__(self, _):
        return self

    def __reduce__(self):
        raise ZeroDivisionError("this value cannot be written")


@contract("CK-2-03")
def test_old_one_is_there_until_the_new_one_is_complete(engine, world):
    """While the only other checkpoint is written, the one before is there."""
    with filled_folder(engine, world, 10, keep_latest_k=1) as (manager, folder):
        assert manager.save(20, state_of(engine, world, 20) | {"seen": Looking(folder)})
        seen = {"seen": set()}
        engine.load(seen, checkpoint_id=manager.path(20))
        assert seen == {"seen": {"step-10"}}
        assert manager.steps() == [20]


@contract("CK-2-03")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["at_once", "asynchronous"])
def test_failed_save_deletes_nothing(engine, world, asynchronous):
    """A save that fails says so with the step and the cause, and the only complete checkpoint stays."""
    with filled_folder(engine, world, 10, keep_latest_k=1, asynchronous=asynchronous) as (manager, _):
        with pytest.raises(engine.CheckpointError, match=r"(?s)step 20 .*cannot be written"):
            save_and_wait(manager, 20, state_of(engine, world, 20) | {"bad": Refusing()})
        assert manager.steps() == [10]
        assert holding(engine, world, manager) == 10
        assert manager.save(30, state_of(engine, world, 30))
        manager.wait()
        assert (manager.steps(), manager.incomplete()) == ([30], [])


@contract("CK-2-03")
def test_latest_is_by_number(engine, world):
    """The latest is the one with the highest number, whatever was saved or touched last."""
    with filled_folder(engine, world, 9, 100, 10) as (manager, _):
        on_rank_0(world, os.utime, manager.path(9), (2e9, 2e9))
        assert manager.steps() == [9, 10, 100]
        assert manager.latest() == 100
        assert holding(engine, world, manager) == 100


@contract("CK-2-03")
@pytest.mark.parametrize("name", NO_STEPS.values(), ids=NO_STEPS)
def test_names_that_are_no_steps(engine, world, name):
    """A complete checkpoint under a name that is no step's is none, and is left alone."""
    with filled_folder(engine, world, 10, keep_latest_k=1) as (manager, folder):
        on_rank_0(world, shutil.copytree, manager.path(10), folder / name)
        assert (manager.steps(), manager.incomplete()) == ([10], [])
        assert manager.save(20, state_of(engine, world, 20))
        assert manager.steps() == [20]
        assert sorted(one.name for one in (folder / name).iterdir()) == sorted(
            one.name for one in manager.path(20).iterdir()
        )


@contract("CK-2-03")
@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("step-10")], ids=["file", "link"])
def test_steps_that_are_no_folders(engine, world, make):
    """A file or a link with the name of a step is no checkpoint."""
    with filled_folder(engine, world, 10) as (manager, _):
        on_rank_0(world, make, manager.path(900))
        assert manager.latest() == 10
        assert holding(engine, world, manager) == 10


def without_manifest(engine, manager):
    shutil.copytree(manager.path(20), manager.path(30))
    (manager.path(30) / "manifest.json").unlink()


def nothing_in_it(engine, manager):
    manager.path(30).mkdir()


def shards_alone(engine, manager):
    without_manifest(engine, manager)
    (manager.path(30) / ".metadata").unlink()


def unfinished_manifest(engine, manager):
    shutil.copytree(manager.path(20), manager.path(30))
    (manager.path(30) / "manifest.json").rename(manager.path(30) / "manifest.json.tmp")


INCOMPLETE = {one.__name__: one for one in (without_manifest, nothing_in_it, shards_alone, unfinished_manifest)}


@contract("CK-2-03")
@pytest.mark.parametrize("leave", INCOMPLETE.values(), ids=INCOMPLETE)
def test_incomplete_is_skipped(engine, world, leave):
    """A step whose save has not ended is told apart, and the newest complete one is loaded."""
    with filled_folder(engine, world, 10, 20) as (manager, _):
        on_rank_0(world, leave, engine, manager)
        assert (manager.latest(), manager.incomplete()) == (20, [30])
        assert holding(engine, world, manager) == 20
        with pytest.raises(engine.CheckpointError, match="step 30 .*has not ended"):
            manager.load(empty_state(engine, world), 30)


@contract("CK-2-03")
def test_incomplete_does_not_count_as_kept(engine, world):
    """Steps whose save has not ended do not push complete ones out."""
    with filled_folder(engine, world, 10, 20, keep_latest_k=2) as (manager, _):
        on_rank_0(world, without_manifest, engine, manager)
        assert manager.save(40, state_of(engine, world, 40))
        assert manager.steps() == [20, 40]


@contract("CK-2-03")
def test_resumed_manager(engine, world):
    """A new manager of the same folder loads the latest, goes on in the same interval, and counts the old ones."""
    with filled_folder(engine, world, 4, 8, interval=4, keep_latest_k=2) as (manager, folder):
        manager.close()
        with engine.CheckpointManager(folder, interval=4, keep_latest_k=2) as resumed:
            first = holding(engine, world, resumed)
            saved = [step for step in range(first + 1, 15) if resumed.save(step, state_of(engine, world, step))]
            assert (first, saved, resumed.steps()) == (8, [12], [8, 12])


@contract("CK-2-03")
def test_named_step(engine, world):
    """The step that is named is loaded, though there are newer ones; one that is not there is an error."""
    with filled_folder(engine, world, 10, 20) as (manager, _):
        assert holding(engine, world, manager, 10) == 10
        with pytest.raises(engine.CheckpointError, match="step 15 "):
            manager.load(empty_state(engine, world), 15)


@contract("CK-2-03")
def test_nothing_to_load(engine, world):
    """In a folder without a complete checkpoint there is no latest, and a load is an error that names the folder."""
    with shared_folder(world) as folder, engine.CheckpointManager(folder / "none") as manager:
        assert (manager.latest(), manager.steps(), manager.incomplete()) == (None, [], [])
        with pytest.raises(engine.CheckpointError, match=str(folder / "none")):
            manager.load(empty_state(engine, world))


@contract("CK-2-03")
def test_complete_step_is_not_replaced(engine, world):
    """A step that is there is not saved again: an error names it, and its values stay."""
    with filled_folder(engine, world, 10) as (manager, _):
        with pytest.raises(engine.CheckpointError, match="step-10 is there already"):
            manager.save(10, empty_state(engine, world))
        assert holding(engine, world, manager) == 10


@contract("CK-2-03")
def test_ranks_agree_on_the_latest(engine, world):
    """Where one rank does not see the newest yet, all ranks take the newest that all of them see."""
    with filled_folder(engine, world, 10, 20) as (manager, folder):
        view = folder.parent / f"view of {world.rank}"
        shutil.copytree(folder, view)
        if world.rank == world.size - 1:
            shutil.rmtree(view / "step-20")
        with engine.CheckpointManager(view) as other:
            assert other.steps() == [10]
            assert holding(engine, world, other) == 10
