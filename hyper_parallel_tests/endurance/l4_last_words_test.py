"""A run that a signal or an exception ends leaves a checkpoint, complete, from which it goes on bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hyper_parallel_tests.endurance.last_words import End, ends, goes_on_from
from hyper_parallel_tests.endurance.launches import uninterrupted
from hyper_parallel_tests.endurance.training import Records, assert_same_steps
from hyper_parallel_tests.harness import World, contract, jobs

LAYOUT, CARDS, STEPS = "fsdp", 2, 8
SIGNALS = {
    "to_one": End("signal", 5, (1,)),
    "to_all": End("signal", 5, (0, 1)),
    # Nothing is left to be saved.
    "at_a_checkpoint": End("signal", 5, (1,), interval=5),
}
ERRORS = {
    "in_backward": End("error_in_backward", 5, (1,)),
    "behind_update": End("error_behind_update", 5, (0,)),
    "on_all": End("error_behind_update", 5, (0, 1)),
}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Where the run that never ended is written down, by the case that asks first."""
    return Records(tmp_path_factory.mktemp("straight"))


def assert_goes_on(world: World, tolerance: Any, folder: Path, records: Records, straight: Records, end: End) -> None:
    """One checkpoint is there, complete, of the step that it says; the run from it is the one that never ended."""
    assert [one.name for one in (folder / "run").glob("[!.]*")] == [f"step-{end.completed}"]
    said = world.engine.verify_checkpoint(folder / "run" / f"step-{end.completed}")
    assert said["step"] == end.completed
    if not straight.steps():
        jobs.run(world, uninterrupted, LAYOUT, STEPS, straight, cards=CARDS)
    resumed = Records(folder / "resumed")
    begun = jobs.run(world, goes_on_from, LAYOUT, STEPS, resumed, folder / "run", cards=CARDS)
    assert begun == [end.completed] * CARDS
    assert_same_steps([records, resumed], straight, [0, end.completed], tolerance)


@contract("EN-06")
@pytest.mark.parametrize("end", SIGNALS.values(), ids=SIGNALS)
def test_sigterm(engine, world, ledger, tmp_path, straight, end):
    """SIGTERM in the middle of a step, to one rank or to all: the step is completed and saved, and the run ends."""
    records = Records(tmp_path / "ended")
    saved = jobs.run(world, ends, LAYOUT, STEPS, records, tmp_path / "run", end, cards=CARDS)
    assert saved == [end.step] * CARDS
    assert_goes_on(world, ledger["exact"], tmp_path, records, straight, end)


@contract("EN-06")
def test_exception_in_the_first_step(engine, world, tmp_path):
    """Where no rank has completed a step nothing is saved, and all of them end and say so."""
    end = End("error_in_backward", 1, (0,))
    ended = jobs.watch(world, ends, LAYOUT, STEPS, Records(tmp_path / "ended"), tmp_path / "run", end, cards=CARDS)
    assert ended[0].error == "Failure: rank 0 fails in step 1"
    for rank, one in enumerate(ended):
        assert one.error, f"rank {rank} has gone on alone: {one}"
        assert "last words: none, since rank 0 has completed no step" in one.traceback
    assert not [*(tmp_path / "run").glob("step-*")]


@contract("EN-06")
@pytest.mark.parametrize("end", ERRORS.values(), ids=ERRORS)
def test_exception(engine, world, ledger, tmp_path, straight, end):
    """An exception on a rank ends all of them, with what it said; the last step that all have completed is saved."""
    records = Records(tmp_path / "ended")
    ended = jobs.watch(world, ends, LAYOUT, STEPS, records, tmp_path / "run", end, cards=CARDS)
    for rank, one in enumerate(ended):
        if rank in end.ranks:
            assert one.error == f"Failure: rank {rank} fails in step {end.step}"
        assert one.error, f"rank {rank} has gone on alone: {one}"
        assert f"last words: the checkpoint of step {end.completed} is complete" in one.traceback
    assert_goes_on(world, ledger["exact"], tmp_path, records, straight, end)
