"""Clipping of sharded gradients at the end of an accumulation window."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.harness import World, assert_parity, contract, mean_over_ranks, train, train_baseline
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.interactions.shards import by_layer
from hyper_parallel_tests.models.mlp import Mlp, mlp, mlp_batch, mlp_loss
from hyper_parallel_tests.models.seeding import Batch

HERE = scenario("IX-11")
STEPS, ROWS = 3, 4
WIDTHS = {"even": 8, "uneven": 7}
# Below the norm of each step's gradients, and above.
BOUNDS = {"clipped": 0.1, "within_the_bound": 1e6}
optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)

each_window = pytest.mark.parametrize("window", [1, 3], ids=lambda one: f"window_{one}")
each_bound = pytest.mark.parametrize("bound", BOUNDS)
each_width = pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)


def windows(world: World, window: int, width: int) -> list[list[Batch]]:
    """As many batches a step as the window has; the same on all ranks."""
    return [
        [mlp_batch(step * window + place, ROWS, width).to(world.device) for place in range(window)]
        for step in range(STEPS)
    ]


def mine(world: World, window: int, width: int) -> list[list[Batch]]:
    return [[one.part(world.rank, world.size) for one in rows] for rows in windows(world, window, width)]


def sharded(engine: Any, world: World, width: int) -> Mlp:
    """The network, layer by layer; of an odd width shards are uneven."""
    return by_layer(engine, mlp(width).to(world.device), HERE.mesh(world))


def accumulate(model: nn.Module, rows: Sequence[Batch]) -> Tensor:
    """Backward of each batch of a window, gradients summed over ranks with the last; gives the sum of the losses."""
    total = torch.zeros((), device=rows[0].inputs.device)
    for place, one in enumerate(rows):
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(place == len(rows) - 1)
        part = mlp_loss(model, one) / len(rows)
        part.backward()
        total += part.detach()
    return total


def into_main_grads(param: nn.Parameter) -> None:
    """Adds a gradient to what the window has so far as soon as it is there."""
    param.main_grad += param.grad
    param.grad = None


def accumulate_apart(model: nn.Module, rows: Sequence[Batch]) -> Tensor:
    """As `accumulate`, with gradients summed over ranks in each batch and added up in `main_grad`."""
    for param in model.parameters():
        param.main_grad = torch.zeros_like(param)
    parts = [mlp_loss(model, one) / len(rows) for one in rows]
    for part in parts:
        part.backward()
    return torch.stack(parts).detach().sum()


def clip_on_one_card(model: nn.Module, bound: float) -> Tensor:
    return nn.utils.clip_grad_norm_(model.parameters(), bound)


@contract("IX-11")
@each_width
@each_window
@each_bound
def test_trains_as_a_single_card_does(engine, world, ledger, width, window, bound):
    """The norm before clipping, clipped gradients and parameters of three windows are the single card's."""
    candidate = train(
        sharded(engine, world, width),
        mine(world, window, width),
        accumulate,
        optimizer=optimizer,
        average=mean_over_ranks,
        backward=None,
        before_update=lambda model: engine.clip_grad_norm_(model.parameters(), BOUNDS[bound]),
    )
    baseline = train_baseline(
        mlp(width).to(world.device),
        windows(world, window, width),
        accumulate,
        optimizer=optimizer,
        backward=None,
        before_update=partial(clip_on_one_card, bound=BOUNDS[bound]),
    )
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])


@contract("IX-11")
@each_width
@each_bound
def test_main_grads_train_as_a_single_card_does(engine, world, ledger, width, bound):
    """Where gradients leave for `main_grad` as they come, that is what is clipped: its norm and the training hold."""
    model = sharded(engine, world, width)
    for param in model.parameters():
        param.register_post_accumulate_grad_hook(into_main_grads)

    def clip(model: nn.Module) -> Tensor:
        norm = engine.clip_grad_norm_(model.parameters(), BOUNDS[bound])
        for param in model.parameters():
            assert param.grad is None, "a gradient is beside the main one"
            param.grad = param.main_grad
        return norm

    candidate = train(
        model,
        mine(world, 3, width),
        accumulate_apart,
        optimizer=optimizer,
        average=mean_over_ranks,
        backward=None,
        before_update=clip,
    )
    baseline = train_baseline(
        mlp(width).to(world.device),
        windows(world, 3, width),
        accumulate,
        optimizer=optimizer,
        backward=None,
        before_update=partial(clip_on_one_card, bound=BOUNDS[bound]),
    )
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])


@contract("IX-11")
@each_width
def test_life_cycle_is_closed(engine, world, width):
    """After a window no gradient waits for a reduction, no parameter is gathered and nothing has grown."""
    model, (rows, *_) = sharded(engine, world, width), mine(world, 3, width)
    update = optimizer(model.parameters())

    def backward():
        accumulate(model, rows)
        engine.clip_grad_norm_(model.parameters(), BOUNDS["clipped"])

    assert_closed(backward, update, model)
