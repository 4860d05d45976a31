"""Trains for many steps: the loss of each beside the single card's, whether all was finite, what the process held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hyper_parallel_tests.endurance import curves
from hyper_parallel_tests.endurance.combinations import Training, alone, batch, optimizer
from hyper_parallel_tests.endurance.resources import sampling
from hyper_parallel_tests.harness import World, assert_close, in_clean_process

__all__ = ["LongRun", "assert_finite", "assert_steady", "draw", "enough", "long_run", "trained"]

# In this share of the steps what stays is made: optimizer state, groups, threads, the allocator's arenas.
_WARM_UP = 0.2
_SAMPLES = 200
# With fewer, warm-up is not over in its share, and a leak in each step stays within the bands of growth.
_LEAST = 40


@dataclass(frozen=True)
class LongRun:
    """What a long run left behind.

    Attributes:
        losses: (steps,), each the mean over the rows of all ranks.
        norms: (steps,), of this rank's part of the gradients.
        growth: quantity -> how much it has grown after warm-up, see `resources.Resources`.
        single: (steps,), the losses of the same model on one card with the rows of all ranks.
    """

    losses: Tensor
    norms: Tensor
    growth: dict[str, float]
    single: Tensor


def enough(steps: int, least: int, to: str) -> None:
    """Refuses a run that would say nothing, or something false, of the engine.

    Raises:
        ValueError: of the request, so that no assertion fails; it has the least number of steps.
    """
    if steps < least:
        raise ValueError(f"a run of {steps} is too short {to}: train {least} steps or more, such as by --steps={least}")


def long_run(
    world: World,
    training: Training,
    whole: Callable[[World], nn.Module],
    steps: int,
    artifacts: Path,
    title: str,
    *,
    after: Callable[[int], object] = lambda step: None,
) -> LongRun:
    """Trains, draws both curves into `artifacts`, and judges nothing; all ranks call this together.

    Args:
        training: this rank's part of the model.
        whole: makes the model on one card; a function of a module.
        title: of the picture.
        after: what else belongs to a step, behind its update.

    Raises:
        ValueError: the steps are too few to tell what grows.
    """
    enough(steps, _LEAST, "to tell what grows from what warms up")
    run = _watched(world, training, steps, after, in_clean_process(_single, world, whole, steps))
    draw(world, artifacts, title, run.losses, run.single)
    return run


def draw(world: World, artifacts: Path, title: str, losses: Tensor, single: Tensor) -> None:
    """Both curves in losses.svg, by one rank for all."""
    if world.rank == 0:
        shown = {"one card": single.tolist(), f"{world.size} cards": losses.tolist()}
        curves.draw(artifacts / "losses.svg", title, shown)


def assert_steady(run: LongRun, ledger: Any, losses: str) -> None:
    """Holds a long run to being finite at each step, to the single card's losses, and to what does not grow.

    Args:
        losses: the row of the ledger for them.

    Raises:
        AssertionError: the message has the first step that is not finite or parts, or what grows and how much.
    """
    assert_finite(run.losses, "loss")
    assert_finite(run.norms, "gradient norm")
    assert_close(run.losses, run.single, ledger[losses], what="loss of each step")
    bands = {name: ledger[f"endurance_growth_{name}"] for name in run.growth}
    grown = [f"{name} by {by:.1f}, {bands[name]}" for name, by in run.growth.items() if by not in bands[name]]
    assert not grown, f"after warm-up, over the rest of {len(run.losses)} steps, have grown: {'; '.join(grown)}"


def assert_finite(values: Tensor, what: str) -> None:
    """Holds the numbers of all steps to being finite.

    Raises:
        AssertionError: the message has how many are not, and the first step.
    """
    bad = (~values.isfinite()).nonzero().flatten().tolist()
    assert not bad, f"the {what} is not finite at {len(bad)} of {len(values)} steps, first at step {bad[0]}"


def trained(
    world: World,
    training: Training,
    update: torch.optim.Optimizer,
    steps: range,
    *,
    before_update: Callable[[int], object] = lambda step: None,
    after: Callable[[int], object] = lambda step: None,
) -> Tensor:
    """Trains some steps of a run; all ranks call this together.

    Returns:
        (len(steps),): the losses, each the mean over the rows of all ranks.
    """
    losses = torch.zeros(2, len(steps))
    for place, step in enumerate(steps):
        loss = training.step(training.part(batch(world, step)))
        if loss is not None:
            losses[:, place] = torch.stack([loss.cpu(), torch.tensor(1.0)])
        before_update(step)
        update.step()
        update.zero_grad()
        after(step)
    # A rank without a loss adds nothing to the sum of losses and nothing to their number.
    dist.all_reduce(losses)
    return losses[0] / losses[1]


def _watched(world: World, training: Training, steps: int, after: Callable[[int], object], single: Tensor) -> LongRun:
    update = optimizer(training.model.parameters())
    norms, warm, every = torch.zeros(steps), int(steps * _WARM_UP), max(1, steps // _SAMPLES)

    def note(step: int) -> None:
        norms[step] = _norm(training.model)

    losses = trained(world, training, update, range(warm), before_update=note, after=after)
    with sampling(world.device) as sampled:

        def look(step: int) -> None:
            after(step)
            if step % every == 0:
                sampled.take()

        rest = trained(world, training, update, range(warm, steps), before_update=note, after=look)
    return LongRun(torch.cat([losses, rest]), norms, sampled.growth(), single)


def _norm(model: nn.Module) -> Tensor:
    grads = [one.grad for one in model.parameters() if one.grad is not None]
    parts = [one.to_local() if hasattr(one, "to_local") else one for one in grads]
    return torch.stack([one.norm() for one in parts]).norm().cpu()


def _single(world: World, whole: Callable[[World], nn.Module], steps: int) -> Tensor:
    training = alone(whole(world))
    return trained(world, training, optimizer(training.model.parameters()), range(steps))
