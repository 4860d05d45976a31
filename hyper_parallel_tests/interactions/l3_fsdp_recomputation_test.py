"""Sharded parameters under recomputed regions."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from hyper_parallel_tests.harness import (
    assert_parity,
    contract,
    mean_over_ranks,
    trace,
    train,
    train_baseline,
)
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.interactions.shards import by_layer
from hyper_parallel_tests.models.mlp import mlp, mlp_batch, mlp_loss

HERE = scenario("IX-07")
STEPS, ROWS = 3, 8
optimizer = partial(torch.optim.AdamW, lr=0.01)


def batches(world):
    return [mlp_batch(step, rows=ROWS).to(world.device) for step in range(STEPS)]


def mine(world):
    return [one.part(world.rank, world.size) for one in batches(world)]


def sharded(engine, world, *, regions: bool):
    """Each layer a unit, and a region around each unit; its parameters by the names that they have without."""
    model = by_layer(engine, mlp().to(world.device), HERE.mesh(world))
    named = list(model.named_parameters())
    if regions:
        model.layers = nn.ModuleList(engine.checkpoint_wrapper(layer) for layer in model.layers)
    return model, lambda: named


def trained(engine, world, *, regions: bool):
    model, params = sharded(engine, world, regions=regions)
    return train(model, mine(world), mlp_loss, optimizer=optimizer, average=mean_over_ranks, params=params)


@contract("IX-07")
def test_trains_as_a_single_card_does(engine, world, ledger):
    """Loss, norm, gradients and parameters of three steps are the single card's."""
    baseline = train_baseline(mlp().to(world.device), batches(world), mlp_loss, optimizer=optimizer)
    assert_parity(trained(engine, world, regions=True), baseline, ledger["ac_fsdp_fp32"])


@contract("IX-07")
def test_recomputation_changes_no_bit(engine, world, ledger):
    """With regions the run is, bit by bit, that of the same shards without."""
    with_regions, without = (trained(engine, world, regions=one) for one in (True, False))
    assert_parity(with_regions, without, ledger["exact"], own_because="the same engine with and without regions")


@contract("IX-07")
def test_recomputation_sends_nothing(engine, world):
    """A region's second forward finds the parameters gathered: a step starts the collectives that it starts without."""
    sent = {}
    for regions in (True, False):
        model, _ = sharded(engine, world, regions=regions)
        for batch in mine(world):
            with trace.collectives() as step:
                mlp_loss(model, batch).backward()
        sent[regions] = step.lines()
    assert sent[True] == sent[False]


@contract("IX-07")
def test_life_cycle_is_closed(engine, world):
    """After a step no parameter is gathered, no hook is left and nothing has grown."""
    model, params = sharded(engine, world, regions=True)
    update = optimizer([param for _, param in params()])
    rows = mine(world)[0]
    assert_closed(lambda: mlp_loss(model, rows).backward(), update, model)
