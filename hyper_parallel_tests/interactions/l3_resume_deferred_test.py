"""A checkpoint loaded into a sharded model that was made without storage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from hyper_parallel_tests.harness import World, assert_parity, contract, mean_over_ranks, train, train_baseline
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.resumption import load, saved_between
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.interactions.shards import by_layer
from hyper_parallel_tests.models.mlp import Mlp, mlp, mlp_batch, mlp_loss
from hyper_parallel_tests.models.seeding import Batch

HERE = scenario("IX-10")
STEPS, ROWS = 4, 8
WIDTHS = {"even": 8, "uneven": 7}
optimizer = partial(torch.optim.AdamW, lr=0.01)

# How parameters get storage before the checkpoint is loaded.
STORAGE = {
    "initialised": lambda engine, world, model: engine.init_parameters(model),
    "empty": lambda engine, world, model: model.to_empty(device=world.device),
}
each_storage = pytest.mark.parametrize("storage", STORAGE)
each_width = pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)


def batches(world: World, width: int) -> list[Batch]:
    return [mlp_batch(step, ROWS, width).to(world.device) for step in range(STEPS)]


def mine(world: World, width: int) -> list[Batch]:
    return [one.part(world.rank, world.size) for one in batches(world, width)]


def sharded(engine: Any, world: World, width: int) -> Mlp:
    return by_layer(engine, mlp(width).to(world.device), HERE.mesh(world))


def deferred(engine: Any, world: World, storage: str, width: int) -> Mlp:
    """Sharded while it has no storage, which it gets afterwards."""
    with engine.init_empty_weights():
        model = Mlp(width, depth=3)
    by_layer(engine, model, HERE.mesh(world))
    assert all(one.is_meta for one in model.parameters())
    STORAGE[storage](engine, world, model)
    return model


def trained(model: nn.Module, update: torch.optim.Optimizer, rows: Sequence[Batch]) -> Track:
    return train(model, rows, mlp_loss, optimizer=update, average=mean_over_ranks)


@contract("IX-10")
@each_width
@each_storage
def test_goes_on_where_it_was(engine, world, ledger, artifacts, width, storage):
    """The deferred model repeats, bit by bit, the run that went on, which is the single card's."""
    model = sharded(engine, world, width)
    run, second_half = saved_between(
        engine, model, optimizer(model.parameters()), mine(world, width), trained, artifacts / "checkpoint"
    )
    baseline = train_baseline(mlp(width).to(world.device), batches(world, width), mlp_loss, optimizer=optimizer)
    assert_parity(run, baseline, ledger["fsdp_1d_fp32"])
    model = deferred(engine, world, storage, width)
    update = optimizer(model.parameters())
    load(engine, model, update, artifacts / "checkpoint")
    resumed = trained(model, update, mine(world, width)[STEPS // 2 :])
    assert_parity(resumed, second_half, ledger["exact"], own_because="the run that goes on is the reference")


@contract("IX-10")
@each_width
@each_storage
def test_life_cycle_is_closed(engine, world, artifacts, width, storage):
    """After a step of the resumed model each parameter is this rank's shard and nothing has grown."""
    model, (rows, *_) = sharded(engine, world, width), mine(world, width)
    saved_between(engine, model, optimizer(model.parameters()), mine(world, width), trained, artifacts / "checkpoint")
    model = deferred(engine, world, storage, width)
    update = optimizer(model.parameters())
    load(engine, model, update, artifacts / "checkpoint")
    assert_closed(lambda: mlp_loss(model, rows).backward(), update, model)
