"""Whole trainings of the decoder with a schedule, in one go or resumed, beside the same training on one card."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.endurance.combinations import Training, alone, optimizer, whole
from hyper_parallel_tests.endurance.long_run import assert_finite, draw, enough, trained
from hyper_parallel_tests.harness import World, assert_close, in_clean_process

__all__ = ["Make", "assert_learns", "learns", "resumed"]

Make = Callable[[Any, World], Training]
# In fewer steps of this schedule the single card's own loss does not always fall by half.
_LEAST = 100
# Steps in which nothing is learned yet, however long the run.
_FIRST = 10
_TO_LEARN = "for the loss to fall by half"


def learns(engine: Any, world: World, make: Make, steps: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Trains in one go; all ranks call this together.

    Returns:
        The losses, (steps,), and the parameters at the end by their names, of this rank's stage.

    Raises:
        ValueError: the steps are too few to learn in.
    """
    enough(steps, _LEAST, _TO_LEARN)
    training = make(engine, world)
    update, schedule = _scheduled(training, steps)
    losses = trained(world, training, update, range(steps), after=lambda step: schedule.step())
    return losses, training.params


def resumed(engine: Any, world: World, make: Make, steps: int, folder: Path) -> tuple[Tensor, dict[str, Tensor]]:
    """The same with a model and an optimizer that are made anew at half and get what was saved in `folder`."""
    enough(steps, _LEAST, _TO_LEARN)
    half = steps // 2
    training = make(engine, world)
    update, schedule = _scheduled(training, steps)
    losses = trained(world, training, update, range(half), after=lambda step: schedule.step())
    engine.save(_state(engine, training, update), checkpoint_id=folder)
    training, saved = make(engine, world), schedule.state_dict()
    update, schedule = _scheduled(training, steps)
    state = _state(engine, training, update)
    engine.load(state, checkpoint_id=folder)
    engine.set_model_state_dict(training.model, state["model"])
    engine.set_optim_state_dict(training.model, update, state["optimizer"])
    schedule.load_state_dict(saved)
    rest = trained(world, training, update, range(half, steps), after=lambda step: schedule.step())
    return torch.cat([losses, rest]), training.params


def assert_learns(
    world: World, found: tuple[Tensor, dict[str, Tensor]], tolerance: Any, artifacts: Path, title: str
) -> None:
    """Draws the curves, and holds losses and parameters to the single card's, and to having learned.

    Raises:
        AssertionError: a loss or a parameter is another, or the loss at the end is not half of that at the start.
    """
    losses, params = found
    single, expected = in_clean_process(_on_one_card, world, len(losses))
    draw(world, artifacts, title, losses, single)
    assert_finite(losses, "loss")
    assert_close(losses, single, tolerance, what="loss of each step")
    assert_close(params, {name: expected[name] for name in params}, tolerance, what="parameters at the end")
    first, last = (float(part.mean()) for part in (losses[:_FIRST], losses[-(len(losses) // 10) :]))
    assert last < first / 2, f"nothing was learned: the loss was {first:.3f} at the start and is {last:.3f} at the end"


def _on_one_card(world: World, steps: int) -> tuple[Tensor, dict[str, Tensor]]:
    training = alone(whole(world))
    update, schedule = _scheduled(training, steps)
    losses = trained(world, training, update, range(steps), after=lambda step: schedule.step())
    return losses, {name: one.detach() for name, one in training.params.items()}


def _scheduled(training: Training, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    update = optimizer(training.model.parameters())
    return update, torch.optim.lr_scheduler.LambdaLR(update, partial(_share, steps))


def _share(steps: int, step: int) -> float:
    """Of the learning rate: up in a twentieth of the steps, then down along a cosine to a tenth."""
    rise = max(1, steps // 20)
    if step < rise:
        return (step + 1) / rise
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def _state(engine: Any, training: Training, update: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": engine.get_model_state_dict(training.model),
        "optimizer": engine.get_optim_state_dict(training.model, update),
    }
