"""Clipping at the end of a window of runs of a pipeline, whose gradients add up."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.harness import World, assert_parity, contract, train_baseline
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.micro_batches import (
    STEPS,
    NotedPipeline,
    batches,
    each_schedule,
    layers_of,
    loss,
    sgd,
    whole,
)
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.seeding import Batch

HERE = scenario("IX-16")
# Below the norm of each window's gradients, and above.
BOUNDS = {"clipped": 0.1, "within_the_bound": 1e6}

each_window = pytest.mark.parametrize("window", [1, 3], ids=lambda one: f"window_{one}")
each_bound = pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)


def windows(world: World, window: int) -> list[list[Batch]]:
    """As many batches a step as the window has; the same on all ranks."""
    drawn = batches(world, STEPS * window)
    return [drawn[step * window : (step + 1) * window] for step in range(STEPS)]


def pipeline(engine: Any, world: World, schedule: str) -> NotedPipeline:
    return NotedPipeline(engine, world, schedule, layers_of(world, schedule), HERE.mesh(world))


def clip(model: nn.Module, *, engine: Any, mesh: Any, bound: float) -> Tensor:
    """Clips by the norm of all stages, and gives it as it was."""
    return engine.clip_grad_norm_(model.parameters(), bound, pp_mesh=mesh)


def on_one_card(model: nn.Module, rows: Sequence[Batch]) -> Tensor:
    """Backward of each batch of a window; gives the sum of the losses."""
    total = torch.zeros((), device=rows[0].inputs.device)
    for one in rows:
        part = loss(model, one)
        part.backward()
        total += part.detach()
    return total


def clip_on_one_card(model: nn.Module, bound: float) -> Tensor:
    return nn.utils.clip_grad_norm_(model.parameters(), bound)


def in_runs(piped: NotedPipeline, model: nn.Module, rows: Sequence[Batch]) -> Tensor:
    """A run for each batch of a window; gives the sum of the losses, on all ranks."""
    return torch.stack([piped.loss(model, one) for one in rows]).sum()


@contract("IX-16")
@each_schedule
@each_window
@each_bound
def test_trains_as_a_single_card_does(engine, world, ledger, schedule, window, bound):
    """The norm before clipping, clipped gradients and parameters of three windows are the single card's."""
    piped, given = pipeline(engine, world, schedule), windows(world, window)
    clipped = partial(clip, engine=engine, mesh=piped.mesh, bound=bound)
    candidate = piped.train(given, loss=partial(in_runs, piped), optimizer=sgd, before_update=clipped)
    baseline = train_baseline(
        whole(world),
        given,
        on_one_card,
        optimizer=sgd,
        backward=None,
        before_update=partial(clip_on_one_card, bound=bound),
    )
    assert_parity(candidate, baseline.only(piped.params), ledger["pp_fsdp_fp32"])


@contract("IX-16")
@each_schedule
def test_order(engine, world, schedule):
    """Each run of a window computes its micro-batches in the plan's order, each from what the neighbour gave for it."""
    piped, (rows, *_) = pipeline(engine, world, schedule), windows(world, 3)
    # Stages may have a pass of their own at the first run, by which they learn shapes.
    piped.run(rows[0])
    for batch in rows[1:]:
        with piped.noted() as notes:
            piped.run(batch)
        assert notes.order == piped.plan
        notes.assert_passed_on(piped.group)


@contract("IX-16")
@each_schedule
def test_life_cycle_is_closed(engine, world, schedule):
    """After a window no message is under way, no hook is left and nothing has grown."""
    piped, (rows, *_) = pipeline(engine, world, schedule), windows(world, 3)

    def backward() -> None:
        in_runs(piped, piped.model, rows)
        clip(piped.model, engine=engine, mesh=piped.mesh, bound=BOUNDS["clipped"])

    assert_closed(backward, sgd(piped.model.parameters()), piped.model)
