"""What a launch of a run does: all of it, or the rest behind the newest checkpoint, until it is killed."""

from __future__ import annotations

from pathlib import Path

from hyper_parallel_tests.endurance.kills import Kill
from hyper_parallel_tests.endurance.training import Records, made
from hyper_parallel_tests.harness import World

__all__ = ["goes_on", "uninterrupted"]


def uninterrupted(world: World, layout: str, steps: int, records: Records) -> None:
    """The run from its start to its end, without checkpoints."""
    made(world, layout, steps, records.writer(world.engine), checkpoints=None).train()


def goes_on(world: World, layout: str, steps: int, records: Records, checkpoints: Path, kill: Kill | None) -> None:
    """A launch that goes on from the newest checkpoint, if there is one, to the end, or until it is killed."""
    engine, restart = world.engine, checkpoints.exists()
    callbacks = [records.writer(engine), *([kill.callback(engine)] if kill else [])]
    trainer = made(world, layout, steps, *callbacks, checkpoints=checkpoints, stranger=restart)
    found = trainer.resume()
    assert (found is not None) == restart, f"resumed from step {found}"
    trainer.train()
