"""Recomputed regions in the stages of a pipeline."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hyper_parallel_tests.harness import World, assert_parity, contract, train_baseline
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.micro_batches import (
    Action,
    NotedPipeline,
    batches,
    each_schedule,
    layers_of,
    loss,
    named,
    sgd,
    whole,
)
from hyper_parallel_tests.interactions.scenario import scenario

HERE = scenario("IX-08")
DROPOUT = 0.3


def pipeline(
    engine: Any, world: World, schedule: str, *, regions: bool = True, dropout: float = 0.0
) -> tuple[NotedPipeline, dict[int, nn.Module]]:
    """Each layer a region, or none; its parameters by the names that they have without. Gives the layers too."""
    modules = layers_of(world, schedule, dropout=dropout)
    params, layers = named(modules), {}
    for module in modules.values():
        for place, layer in list(module.layers.items()):
            layers[int(place)] = layer
            if regions:
                module.layers[place] = engine.checkpoint_wrapper(layer)
    return NotedPipeline(engine, world, schedule, modules, HERE.mesh(world), params), layers


def trained(engine: Any, world: World, schedule: str, *, regions: bool) -> Track:
    """With dropout, of the same seed in each run."""
    torch.manual_seed(world.rank)
    piped, _ = pipeline(engine, world, schedule, regions=regions, dropout=DROPOUT)
    return piped.train(batches(world), optimizer=sgd)


@contract("IX-08")
@each_schedule
def test_trains_as_a_single_card_does(engine, world, ledger, schedule):
    """Loss, norm, gradients and parameters of three steps are the single card's."""
    piped, _ = pipeline(engine, world, schedule)
    baseline = train_baseline(whole(world), batches(world), loss, optimizer=sgd)
    assert_parity(piped.train(batches(world), optimizer=sgd), baseline.only(piped.params), ledger["pp_fsdp_fp32"])


@contract("IX-08")
@each_schedule
def test_recomputation_changes_no_bit(engine, world, ledger, schedule):
    """Micro-batches under way keep each its own dropout: with regions the run is, bit by bit, that without."""
    with_regions, without = (trained(engine, world, schedule, regions=one) for one in (True, False))
    assert_parity(with_regions, without, ledger["exact"], own_because="the same engine with and without regions")


@contract("IX-08")
@each_schedule
def test_order(engine, world, schedule):
    """Micro-batches come forward and back in the plan's order, and each is computed again in its own backward."""
    piped, layers = pipeline(engine, world, schedule)
    # Stages may have a pass of their own at the first run, by which they learn shapes.
    first, second, *_ = batches(world)
    piped.run(first)
    with piped.noted(layers) as notes:
        piped.run(second)
    due = []
    for action in piped.plan:
        due.append(action)
        if action.what == "B":
            own = list(piped.modules[action.place].layers)
            due += [Action("R", int(layer), action.micro) for layer in reversed(own)]
    assert notes.order == due
    notes.assert_passed_on(piped.group)


@contract("IX-08")
@each_schedule
def test_life_cycle_is_closed(engine, world, schedule):
    """After a step no message is under way, no hook is left and nothing has grown."""
    piped, _ = pipeline(engine, world, schedule)
    batch = batches(world)[0]
    assert_closed(lambda: piped.run(batch), sgd(piped.model.parameters()), piped.model)
