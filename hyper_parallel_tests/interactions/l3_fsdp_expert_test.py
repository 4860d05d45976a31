"""Experts divided over ranks, whose parts are sharded over others."""

from __future__ import annotations

from typing import Any

import pytest

from hyper_parallel_tests.harness import World, assert_parity, contract, trace
from hyper_parallel_tests.interactions.communication import assert_same_order
from hyper_parallel_tests.interactions.experts import (
    SHAPE,
    alike,
    batches,
    loss,
    optimizer,
    trained,
    trained_on_one_card,
    whole,
    with_sharded_experts,
)
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.moe import MoeDecoder

HERE = scenario("IX-12")
# The dimension that an expert's part is sharded along: the experts, or the width of each.
each_dimension = pytest.mark.parametrize("dim", [0, 1], ids=["experts", "widths"])


def sharded(engine: Any, world: World, dim: int) -> tuple[MoeDecoder, Any]:
    """The decoder, and the mesh of all ranks."""
    mesh = HERE.mesh(world)
    ranks = engine.flatten_mesh(mesh, "data")
    placement = engine.Shard(dim)
    model = with_sharded_experts(
        engine, whole(world), mesh["ep"], mesh["fsdp"], ranks, shard_placement_fn=lambda _: placement
    )
    return model, ranks


@contract("IX-12")
@each_dimension
def test_trains_as_a_single_card_does(engine, world, ledger, dim):
    """Loss with its balancing part, norm, gradients and parameters of three steps are the single card's."""
    rows = batches(world, world.size)
    candidate = trained(engine, *sharded(engine, world, dim), rows)
    assert_parity(candidate, trained_on_one_card(world, rows), ledger["ep_fsdp_fp32"])


@contract("IX-12")
def test_uneven_loads(engine, world, ledger):
    """So are they where each rank's tokens all choose the same experts; ranks start collectives in one order still."""
    rows = alike(batches(world, world.size))
    model, ranks = sharded(engine, world, 0)
    mine = rows[0].part(world.rank, world.size)
    with trace.collectives() as sent:
        loss(model, mine, engine=engine, ranks=ranks).backward()
    assert any(len(layer.routing.experts.unique()) == SHAPE.top_k for layer in model.expert_layers())
    assert_same_order(world, sent)
    assert_parity(trained(engine, model, ranks, rows), trained_on_one_card(world, rows), ledger["ep_fsdp_fp32"])


@contract("IX-12")
@each_dimension
def test_life_cycle_is_closed(engine, world, dim):
    """After a step each rank has its shards of its experts, no hook is left and nothing has grown."""
    model, ranks = sharded(engine, world, dim)
    update = optimizer(model.parameters())
    mine = batches(world, world.size)[0].part(world.rank, world.size)
    assert_closed(lambda: loss(model, mine, engine=engine, ranks=ranks).backward(), update, model)
