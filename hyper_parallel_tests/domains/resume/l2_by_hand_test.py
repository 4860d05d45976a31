"""A restart without a trainer: model, optimizer and step by the members for checkpoints and state dicts alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.harness import World, assert_equal, contract, jobs
from hyper_parallel_tests.harness.judging.comparison import full
from hyper_parallel_tests.models.mlp import mlp, mlp_batch, mlp_loss

WIDTH, DEPTH, HALF, CARDS = 8, 2, 2, 2
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "sgd_momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.1),
}


def part(
    world: World, make_optimizer: Any, last: int, *, before: Path | None = None, after: Path | None = None
) -> dict[str, Tensor]:
    """Steps up to the last one, from a checkpoint or from the start. Gives losses and parameters behind them.

    Args:
        before: the checkpoint to begin with, in a model of other weights.
        after: where to save at the end.
    """
    engine, mesh = world.engine, world.mesh(dp=world.size)
    model = mlp(WIDTH, DEPTH, seed=0 if before is None else 5).to(world.device)
    for layer in model.layers:
        engine.fully_shard(layer, mesh=mesh)
    engine.fully_shard(model, mesh=mesh)
    optimizer = make_optimizer(model.parameters())
    step = 0
    if before is not None:
        state = state_of(engine, model, optimizer, step)
        engine.load(state, checkpoint_id=before)
        weights = {name: state[f"model.{name}"] for name, _ in model.named_parameters()}
        engine.set_model_state_dict(model, weights)
        if "optimizer" in state:
            engine.set_optim_state_dict(model, optimizer, state["optimizer"])
        step = state["step"]
    found = {}
    for number in range(step, last):
        batch = mlp_batch(number, 4 * world.size, WIDTH).part(world.rank, world.size).to(world.device)
        optimizer.zero_grad()
        loss = mlp_loss(model, batch)
        loss.backward()
        optimizer.step()
        found[f"loss of step {number}"] = loss.detach().cpu()
    if after is not None:
        engine.save(state_of(engine, model, optimizer, last), checkpoint_id=after)
    return found | {name: full(one) for name, one in model.named_parameters()}


def state_of(engine: Any, model: Any, optimizer: Any, step: int) -> dict[str, Any]:
    """What a restart needs; SGD without momentum has nothing of its own."""
    state = {f"model.{name}": one for name, one in engine.get_model_state_dict(model).items()} | {"step": step}
    if optimizer.defaults.get("momentum") != 0:
        state["optimizer"] = engine.get_optim_state_dict(model, optimizer)
    return state


@contract("RS-2-01")
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_by_hand(engine, world, artifacts, make_optimizer):
    """Losses and parameters behind a restart are bit for bit those of a run that was never stopped."""
    folder = artifacts / "checkpoint"
    straight = jobs.run(world, part, make_optimizer, 2 * HALF, cards=CARDS)
    jobs.run(world, partial(part, after=folder), make_optimizer, HALF, cards=CARDS)
    found = jobs.run(world, partial(part, before=folder), make_optimizer, 2 * HALF, cards=CARDS)
    for mine, theirs in zip(found, straight, strict=True):
        assert_equal(mine, {name: theirs[name] for name in mine}, what="the run")
