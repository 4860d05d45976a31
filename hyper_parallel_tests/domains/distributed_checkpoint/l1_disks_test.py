"""What a save does to a disk, and what it says of one that is full or read-only: what was complete is complete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from hyper_parallel_tests.domains.distributed_checkpoint.managed import assert_holds, empty_state, state_of
from hyper_parallel_tests.domains.distributed_checkpoint.moments import Change, each_change
from hyper_parallel_tests.domains.distributed_checkpoint.small_disk import small_disk
from hyper_parallel_tests.domains.distributed_checkpoint.ways import WAYS, Managed
from hyper_parallel_tests.harness import contract, jobs

CARDS, DISK_BYTES = 2, 512 * 1024
# Rows of a state whose tensors take a fifth of the disk, and more than all of it.
FEW, MANY = DISK_BYTES // 120, DISK_BYTES // 12


def saved(world: Any, folder: Path, way: str, step: int, rows: int) -> None:
    """Saves one step."""
    WAYS[way](world.engine, folder).save(step, state_of(world.engine, world, step, rows))


def loaded(world: Any, folder: Path, way: str, step: int, rows: int) -> None:
    """A new launch loads one step."""
    state = empty_state(world.engine, world, rows)
    WAYS[way](world.engine, folder).load(step, state)
    assert_holds(world.engine, world, state, step, rows)


def not_synced(world: Any, folder: Path) -> list[str]:
    """Saves step 10, and gives what of it no rank has put on the disk as it is now, folders by their own names."""
    synced, put_on_disk = set(), os.fsync

    def state(found: os.stat_result) -> tuple[int, int, int]:
        return found.st_ino, found.st_size, found.st_mtime_ns

    def fsync(file: int) -> None:
        put_on_disk(file)
        synced.add(state(os.fstat(file)))

    os.fsync = fsync
    saved(world, folder, "manager", 10, FEW)
    parts: list[Any] = [None] * world.size
    dist.all_gather_object(parts, synced)
    step = folder / "step-10"
    return [path.name for path in (folder, step, *step.iterdir()) if state(path.stat()) not in set.union(*parts)]


@contract("CK-1-03")
def test_complete_is_on_the_disk(world, tmp_path):
    """When a save has ended, its files and the names of them are on the disk, so that no power cut takes them."""
    [left, _] = jobs.run(world, not_synced, tmp_path / "run", cards=CARDS)
    assert left == []


class Unwritable:
    """A value that cannot be written."""

    def __reduce__(self) -> Any:
        raise ZeroDivisionError("this value cannot be written")


def changes_of_a_failed_save(world: Any, folder: Path) -> list[Change]:
    """What this rank takes away in the folder, in a save that fails on the last rank."""
    seen: list[Change] = []
    bad = {"bad": Unwritable()} if world.rank == world.size - 1 else {}
    manager = Managed(world.engine, folder)
    each_change(folder, seen.append)
    try:
        manager.save(10, state_of(world.engine, world, 10, FEW) | bad)
    except manager.error:
        return [one for one in seen if one[0] in ("rename", "delete")]
    raise AssertionError("it was saved without an error")


@contract("CK-1-03")
def test_one_rank_alone_tidies_up(world, tmp_path):
    """What a failed save leaves is deleted by one rank, before the error: a late one would delete the next save's."""
    [first, last] = jobs.run(world, changes_of_a_failed_save, tmp_path / "run", cards=CARDS)
    assert last == []
    assert "delete" in [kind for kind, *_ in first]
    assert [one.name for one in (tmp_path / "run").iterdir()] == [".writer"]


def refused_in_one_launch(world: Any, folder: Path, way: str) -> str:
    """Saves a step that does not fit, then loads the one before and, with the manager, saves one that fits."""
    engine = world.engine
    chosen = WAYS[way](engine, folder)
    try:
        chosen.save(20, state_of(engine, world, 20, MANY))
    except chosen.error as error:
        said = str(error)
    else:
        raise AssertionError("it was saved without an error")
    state = empty_state(engine, world, FEW)
    chosen.load(10, state)
    assert_holds(engine, world, state, 10, FEW)
    if isinstance(chosen, Managed):
        chosen.save(30, state_of(engine, world, 30, FEW))
        assert chosen.manager.steps() == [10, 30]
    dist.barrier()
    return said


each_way = pytest.mark.parametrize("way", WAYS)


@contract("CK-1-03")
@each_way
def test_full_disk(world, way):
    """A save that does not fit is an error on each rank that has the cause, the one before loads, the next one fits."""
    with small_disk(DISK_BYTES) as disk:
        folder = disk.path / "run"
        jobs.run(world, saved, folder, way, 10, FEW, cards=CARDS)
        said = jobs.run(world, refused_in_one_launch, folder, way, cards=CARDS)
        assert all("No space left on device" in one for one in said), said
        jobs.run(world, loaded, folder, way, 10, FEW, cards=CARDS)


@contract("CK-1-03")
@each_way
def test_read_only_disk(world, way):
    """Where nobody may write, a save is an error on each rank that has the cause, and what is there loads."""
    with small_disk(DISK_BYTES) as disk:
        folder = disk.path / "run"
        jobs.run(world, saved, folder, way, 10, FEW, cards=CARDS)
        disk.make_read_only()
        ended = jobs.watch(world, saved, folder, way, 20, FEW, cards=CARDS, limit=30)
        assert all("Read-only file system" in one.error for one in ended), ended
        jobs.run(world, loaded, folder, way, 10, FEW, cards=CARDS)
