"""A run that is killed, launched anew in fresh processes, and held to the run that was never stopped."""

from __future__ import annotations

from pathlib import Path
from signal import SIGKILL
from typing import Any

from hyper_parallel_tests.endurance.kills import Kill
from hyper_parallel_tests.endurance.launches import goes_on, uninterrupted
from hyper_parallel_tests.endurance.training import Records, assert_same_steps, cards_of, checkpoint_before
from hyper_parallel_tests.harness import World, jobs

__all__ = ["assert_continues"]


def assert_killed(ended: list[jobs.Ended], kill: Kill) -> None:
    """The one that was to be killed was, and the others have noticed."""
    assert ended[kill.rank].exit == -SIGKILL, ended[kill.rank]
    for rank, one in enumerate(ended):
        assert rank == kill.rank or one.error, f"rank {rank} has not noticed the death of rank {kill.rank}: {one}"


def assert_continues(world: World, tolerance: Any, folder: Path, layout: str, steps: int, kills: list[Kill]) -> None:
    """Launches the run once more than it is killed, and holds all of its steps to those of the run without kills."""
    cards, straight = cards_of(layout), Records(folder / "straight")
    jobs.run(world, uninterrupted, layout, steps, straight, cards=cards)
    launches = [Records(folder / f"launch_{number}") for number in range(len(kills) + 1)]
    for records, kill in zip(launches, [*kills, None], strict=True):
        args = (goes_on, layout, steps, records, folder / "checkpoints", kill)
        if kill is None:
            jobs.run(world, *args, cards=cards)
        else:
            print(f"to be killed: {kill}")
            assert_killed(jobs.watch(world, *args, cards=cards), kill)
    assert_same_steps(launches, straight, [0, *(checkpoint_before(kill.step) for kill in kills)], tolerance)
