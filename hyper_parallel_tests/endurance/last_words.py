"""A run that ends before its time and leaves a checkpoint behind: what ends it, and how it goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.endurance.training import Records, made
from hyper_parallel_tests.harness import World

__all__ = ["End", "Failure", "ends", "goes_on_from"]


class Failure(Exception):
    """What a rank fails with."""


@dataclass(frozen=True)
class End:
    """What comes over a rank in the middle of a step.

    Attributes:
        what: "signal", "error_in_backward", after which the others wait in vain for gradients, or
            "error_behind_update", when the others have completed the step already.
        step: the one in which it comes, the first is 1.
        ranks: over which.
        interval: steps between checkpoints that the run saves itself, 0 for none.
    """

    what: str
    step: int
    ranks: tuple[int, ...]
    interval: int = 0

    @property
    def completed(self) -> int:
        """The last step that all ranks complete."""
        return self.step if self.what == "signal" else self.step - 1

    def callback(self, engine: Any) -> Callable[[Any], Any]:
        """Makes the callback of a trainer in which it comes."""
        return partial(_ending, engine, self)


def _ending(engine: Any, end: End, trainer: Any) -> Any:
    class Ending(engine.Callback):
        name = "ending"

        def on_train_begin(self, state: Any) -> None:
            if end.what == "error_in_backward":
                output = self.trainer.model.output
                output.register_forward_hook(lambda module, given, found: self.hook(found))

        def hook(self, logits: Any) -> None:
            if self.has_come():
                logits.register_hook(self.fail)

        def on_pre_optimizer_step(self, state: Any, *, grad_norm: float | None) -> None:
            if end.what == "signal" and self.has_come():
                os.kill(os.getpid(), signal.SIGTERM)

        def on_step_end(self, state: Any, *, loss: float, grad_norm: float | None) -> None:
            if end.what == "error_behind_update" and state.global_step == end.step and dist.get_rank() in end.ranks:
                self.fail()

        def has_come(self) -> bool:
            return dist.get_rank() in end.ranks and self.trainer.state.global_step + 1 == end.step

        def fail(self, *given: Any) -> None:
            raise Failure(f"rank {dist.get_rank()} fails in step {end.step}")

    return Ending(trainer)


def ends(world: World, layout: str, steps: int, records: Records, folder: Path, end: End) -> int | None:
    """A run that has its end; the step that it has saved."""
    engine, before = world.engine, signal.getsignal(signal.SIGTERM)
    entered: list[Any] = []
    callbacks = (records.writer(engine), end.callback(engine), partial(_telling, engine, end.interval, entered))
    trainer = made(world, layout, steps, *callbacks, checkpoints=None)
    with engine.CheckpointManager(folder) as manager, engine.LastWords(manager, trainer.state_dict) as last:
        entered += [manager, last]
        trainer.train()
    assert signal.getsignal(signal.SIGTERM) == before, "behind the context SIGTERM is not handled as before it"
    return last.saved


def _telling(engine: Any, interval: int, entered: list[Any], trainer: Any) -> Any:
    class Telling(engine.Callback):
        name = "telling"

        def on_step_end(self, state: Any, *, loss: float, grad_norm: float | None) -> None:
            manager, last = entered
            if interval and state.global_step % interval == 0:
                manager.save(state.global_step, self.trainer.state_dict())
            if last.completed(state.global_step):
                state.should_stop = True

    return Telling(trainer)


def goes_on_from(world: World, layout: str, steps: int, records: Records, folder: Path) -> int:
    """A run that goes on from the newest checkpoint to its end; the step that it begins behind."""
    engine = world.engine
    trainer = made(world, layout, steps, records.writer(engine), checkpoints=None, stranger=True)
    with engine.CheckpointManager(folder) as manager:
        trainer.load_checkpoint(manager.path(manager.latest()))
    begun = trainer.state.global_step
    trainer.train()
    return begun
