"""When a rank of a run is killed: at a step, in its middle, at its end, or in the middle of its checkpoint."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hyper_parallel_tests.models.seeding import generator

__all__ = ["IN_A_SAVE", "IN_A_STEP", "Kill", "drawn"]

IN_A_STEP = ("before_update", "behind_update")
IN_A_SAVE = ("in_a_shard", "before_commit")


@dataclass(frozen=True)
class Kill:
    """Which rank dies when.

    Attributes:
        step: the one that is not, or has just been, updated, or whose checkpoint is being written.
        rank: rank 0 commits a checkpoint, so that it alone dies before a commit.
        moment: of `IN_A_STEP` or `IN_A_SAVE`.
    """

    step: int
    rank: int
    moment: str

    def callback(self, engine: Any) -> Callable[[Any], Any]:
        """Makes the callback of a trainer that kills its own process by SIGKILL."""
        return partial(_killer, engine, self)


def drawn(seed: int, steps: int, first: int, cards: int, count: int) -> list[Kill]:
    """Kills at random, each in its equal part of the steps from `first` on; the same for the same seed.

    Raises:
        ValueError: there is not a step for each.
    """
    if steps - first < count:
        raise ValueError(
            f"{steps} steps have no room for {count} kills from step {first} on: train {first + count} or more"
        )
    source, found = generator(seed, "kills"), []
    for part in range(count):
        begin, end = (first + (steps - first) * (part + more) // count for more in (0, 1))
        step, rank, moment = (
            int(torch.randint(low, high, (), generator=source))
            for low, high in ((begin, end), (0, cards), (0, len(IN_A_STEP)))
        )
        found.append(Kill(step, rank, IN_A_STEP[moment]))
    return found


def _killer(engine: Any, kill: Kill, trainer: Any) -> Any:
    class Killer(engine.Callback):
        name = "killer"

        def on_pre_optimizer_step(self, state: Any, *, grad_norm: float | None) -> None:
            if kill.moment == "before_update" and state.global_step + 1 == kill.step:
                self.strike()

        def on_step_end(self, state: Any, *, loss: float, grad_norm: float | None) -> None:
            if state.global_step == kill.step and kill.moment != "before_update":
                self.strike()

        def strike(self) -> None:
            if torch.distributed.get_rank() != kill.rank:
                return
            if kill.moment in IN_A_SAVE:
                sys.addaudithook(partial(_die_in_a_save, kill))
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    return Killer(trainer)


def _die_in_a_save(kill: Kill, event: str, args: tuple[Any, ...]) -> None:
    """Hears of what this process is going to do to files, and kills it when the moment has come."""
    folder = f"step-{kill.step}"
    if kill.moment == "in_a_shard":
        # The file is open already, and empty.
        has_come = event == "os.truncate" or (event == "open" and _writes(args) and folder in os.fsdecode(args[0]))
    else:
        has_come = event == "os.rename" and os.fsdecode(args[1]).endswith(folder)
    if has_come:
        os.kill(os.getpid(), signal.SIGKILL)


def _writes(args: tuple[Any, ...]) -> bool:
    return not isinstance(args[0], int) and bool(args[2] & (os.O_WRONLY | os.O_RDWR))
