"""Runs of a trainer: from the start, to a checkpoint, and from a checkpoint."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hyper_parallel_tests.domains.resume.networks import (
    DEPTH,
    LAYOUTS,
    Rows,
    divided,
    loss_of,
    network,
    pipelined,
    rows,
    validation_rows,
)
from hyper_parallel_tests.domains.resume.tracks import Ran, Seen, recorder
from hyper_parallel_tests.harness import World, jobs

__all__ = [
    "EVERYTHING",
    "PLAIN",
    "Plan",
    "begun",
    "cards_of",
    "continued",
    "made",
    "ran",
    "saved",
    "straight",
]


@dataclass(frozen=True)
class Plan:
    """What a run is made of, beside its layout.

    Attributes:
        settings: overrides of the configuration.
        dropout: of the network.
        noisy: whether rows and inputs get noise from Python's, NumPy's and a stream's generator.
        changes: whether betas, weight decay and learning rates are changed after the first step.
        frozen: name of a parameter that is not trained.
        grows: whether a buffer counts forwards, on which they depend.
    """

    settings: tuple[str, ...] = ()
    dropout: float = 0.0
    noisy: bool = False
    changes: bool = False
    frozen: str = ""
    grows: bool = True

    def also(self, *settings: str) -> Plan:
        """With further settings."""
        return replace(self, settings=self.settings + settings)


PLAIN = Plan(("--training.steps=6", "--training.gradient_accumulation_steps=2", "--optimizer.lr=0.1"))
"""No random numbers but the order of rows: the same on any mesh."""

EVERYTHING = Plan(
    (
        "--training.steps=6",
        "--training.gradient_accumulation_steps=4",
        "--training.max_grad_norm=0.5",
        "--optimizer.lr=0.1",
        "--lr_schedule.name=cosine",
        "--lr_schedule.warmup_steps=4",
        "--loss_scale.enabled=true",
        "--loss_scale.init_scale=8",
        "--loss_scale.growth_interval=4",
        "--logging.interval=2",
        "--callbacks=[logging, validation, best_metric]",
        "--best_metric.mode=max",
    ),
    dropout=0.25,
    noisy=True,
    changes=True,
    frozen="layers.1.down.bias",
)
"""All that a step may depend on. In the middle of six steps the warm-up is not over, the scale has not grown, and the
second epoch has begun. The best value is to be the largest, so that it is an early one and later ones are worse."""


def cards_of(layout: str) -> int:
    """How many ranks a layout has."""
    return math.prod(LAYOUTS[layout].values())


def made(
    world: World,
    plan: Plan,
    layout: str,
    *,
    stranger: bool = False,
    more: tuple[Callable[[Any], Any], ...] = (),
    validation: Rows | None = None,
) -> Any:
    """A trainer of a plan on a layout.

    Args:
        stranger: other weights, other seeds of everything, another loss scale: what a restore must replace.
        more: further callbacks.
        validation: rows in the place of those of the plans.
    """
    engine, dims = world.engine, LAYOUTS[layout]
    seeds = ("--training.seed=77", "--data.seed=78", "--loss_scale.init_scale=32") if stranger else ()
    degrees = tuple(f"--parallel.{name}={degree}" for name, degree in dims.items())
    config = engine.parse_training_config("{}", plan.settings + seeds + degrees)
    layers = _stage(world) if "pp" in dims else range(DEPTH)
    whole = network(5 if stranger else 0, plan.dropout, layers)
    if plan.frozen:
        whole.get_parameter(plan.frozen).requires_grad_(False)
    model, mesh = divided(world, whole, layout)
    if stranger:
        # The generators are the process's, and would be where the trainer before has left them.
        torch.manual_seed(79)
        random.seed(79)
        np.random.seed(79)
    streams = _streams(engine, plan, stranger)
    model.streams, model.grows = streams, plan.grows
    trainer = engine.BaseTrainer(
        config,
        model,
        loss_of,
        rows(plan.noisy),
        mesh=mesh,
        validation_dataset=validation or validation_rows(),
        forward_backward=pipelined(world, model, mesh) if "pp" in dims else None,
        rng_tracker=streams,
        callbacks=(*more, *((partial(_changer, engine),) if plan.changes else ())),
    )
    if plan.frozen and stranger:
        model.get_parameter(plan.frozen).requires_grad_(True)
    return trainer


def observed(world: World, plan: Plan, layout: str, *, stranger: bool = False) -> tuple[Any, Callable[[Any], Ran]]:
    """A trainer whose steps are written down, and what gives the run so far, from the trainer."""
    seen = Seen()
    trainer = made(world, plan, layout, stranger=stranger, more=(partial(recorder, world.engine, seen),))
    return trainer, seen.run_of


def ran(world: World, plan: Plan, layout: str, steps: int | None = None) -> Ran:
    """A run from its start."""
    trainer, seen = observed(world, plan, layout)
    trainer.train(steps=steps)
    return seen(trainer)


_straight: dict[tuple[Plan, str], list[Ran]] = {}


def straight(world: World, plan: Plan, layout: str) -> list[Ran]:
    """What each rank sees of a run that is never stopped, in a job. The same run is done once for all cases."""
    key = (plan, layout)
    if key not in _straight:
        _straight[key] = jobs.run(world, ran, plan, layout, cards=cards_of(layout))
    return _straight[key]


def begun(world: World, plan: Plan, layout: str, *, steps: int = 0, micro_batches: int = 0) -> Any:
    """A trainer that has done so many steps, and so many micro-batches of the next one."""
    trainer = made(world, plan, layout)
    if steps:
        trainer.train(steps=steps)
    if micro_batches:
        trainer.train(micro_batches=micro_batches)
    return trainer


def saved(world: World, plan: Plan, layout: str, folder: Path, steps: int = 0, micro_batches: int = 0) -> None:
    """A run from its start to a checkpoint."""
    begun(world, plan, layout, steps=steps, micro_batches=micro_batches).save_checkpoint(folder)


def continued(world: World, plan: Plan, layout: str, folder: Path) -> Ran:
    """A run from a checkpoint to its end, in a trainer that has other weights and seeds until then."""
    trainer, seen = observed(world, plan, layout, stranger=True)
    trainer.load_checkpoint(folder)
    trainer.train()
    return seen(trainer)


def _changer(engine: Any, trainer: Any) -> Any:
    """A callback by which a user changes settings after the first step: what no configuration knows."""

    class Changer(engine.Callback):
        name = "changer"

        def on_step_end(self, state: Any, *, loss: float, grad_norm: float | None) -> None:
            if state.global_step != 1:
                return
            matrices, vectors = self.trainer.optimizer.param_groups
            matrices["betas"], vectors["weight_decay"] = (0.5, 0.75), 0.25
            self.trainer.lr_scheduler.base_lrs[1] *= 2

    return Changer(trainer)


def _streams(engine: Any, plan: Plan, stranger: bool) -> Any:
    if not plan.noisy:
        return None
    tracker = engine.RNGStatesTracker()
    tracker.add("noise", 99 if stranger else 11)
    return tracker


def _stage(world: World) -> range:
    """The layers of this rank's stage, of two."""
    half = DEPTH // 2
    return range(world.rank * half, (world.rank + 1) * half)
