"""Sharded layers whose attention runs over a divided sequence: the ranks that divide the one divide the other."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from hyper_parallel_tests.harness import (
    World,
    assert_close,
    assert_parity,
    contract,
    in_clean_process,
    mean_over_ranks,
    trace,
    train,
    train_baseline,
)
from hyper_parallel_tests.interactions.attention import (
    Layers,
    batches,
    each_style,
    each_way,
    loss,
    optimizer,
    outputs,
    part,
    whole,
    with_divided_sequence,
)
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.interactions.shards import by_layer

HERE = scenario("IX-06")
# What carries keys, values and gradients of each style between the ranks.
CARRIERS = {"ulysses": "all_to_all", "all_gather": "all_gather"}


def sharded(engine: Any, world: World, style: str, asynchronous: bool) -> Layers:
    mesh = HERE.mesh(world)
    return by_layer(engine, with_divided_sequence(engine, mesh, whole(world), style, asynchronous=asynchronous), mesh)


def mine(world: World) -> list[Any]:
    return [part(one, world.rank, world.size) for one in batches(world)]


def loss_here(world: World) -> Any:
    return partial(loss, rank=world.rank, size=world.size)


@contract("IX-06")
@each_style
@each_way
def test_trains_as_a_single_card_does(engine, world, ledger, style, asynchronous):
    """Loss, norm, gradients and parameters of three steps are the single card's."""
    candidate = train(
        sharded(engine, world, style, asynchronous),
        mine(world),
        loss_here(world),
        optimizer=optimizer,
        average=mean_over_ranks,
    )
    baseline = train_baseline(whole(world), batches(world), loss, optimizer=optimizer)
    assert_parity(candidate, baseline, ledger["cp_fsdp_fp32"])


@contract("IX-06")
@each_style
@each_way
def test_communication_is_that_of_both(engine, world, style, asynchronous):
    """A step starts the transfers of a divided sequence and the collectives of the shards, none more and none less."""
    mesh = HERE.mesh(world)
    divided = with_divided_sequence(engine, mesh, whole(world), style, asynchronous=asynchronous)
    shards, rows = by_layer(engine, whole(world), mesh), mine(world)[0]
    both = sharded(engine, world, style, asynchronous)
    lines = [Counter(lines_of(model, rows, world)) for model in (both, divided, shards)]
    assert lines[0] == lines[1] + lines[2]


def lines_of(model: Layers, rows: Any, world: World) -> list[str]:
    """The collectives of a second step."""
    for _ in range(2):
        with trace.collectives() as sent:
            loss_here(world)(model, rows).backward()
    return sent.lines()


@contract("IX-06")
@each_style
@each_way
def test_output_is_that_of_this_ranks_tokens(engine, world, ledger, style, asynchronous):
    """The attention's output, and with it the gradient of its input, are the single card's at this rank's tokens."""
    found = outputs(sharded(engine, world, style, asynchronous), mine(world)[0], world.rank, world.size)
    expected: dict[str, Tensor] = in_clean_process(outputs, whole(world), batches(world)[0])
    here = {name: one.chunk(world.size, 1)[world.rank] for name, one in expected.items()}
    assert_close(found, here, ledger["cp_fsdp_fp32"], what="attention")


@contract("IX-06")
@each_style
@each_way
def test_ranks_communicate_in_one_order(engine, world, style, asynchronous):
    """In each step all ranks start gathering, transfers of attention and reduction in the same order."""
    model = sharded(engine, world, style, asynchronous)
    for batch in mine(world)[:2]:
        with trace.collectives() as step:
            loss_here(world)(model, batch).backward()
        orders: list[Any] = [None] * world.size
        dist.all_gather_object(orders, step.lines())
        kinds = {line.split()[0] for line in step.lines()}
        assert {"all_gather", "reduce_scatter", CARRIERS[style]} <= kinds, f"only {kinds} were seen"
        assert orders == [step.lines()] * world.size


@contract("IX-06")
@each_style
@each_way
def test_life_cycle_is_closed(engine, world, style, asynchronous):
    """After a step no transfer is under way, no parameter is gathered and nothing has grown."""
    model, (rows, *_) = sharded(engine, world, style, asynchronous), mine(world)
    update = optimizer(model.parameters())
    assert_closed(lambda: loss_here(world)(model, rows).backward(), update, model)
