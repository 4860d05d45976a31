"""Experts divided over ranks and by their width, attention by its heads, and all of it sharded."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.harness import World, assert_parity, contract, trace
from hyper_parallel_tests.interactions.communication import assert_as_undivided, assert_same_order
from hyper_parallel_tests.interactions.experts import (
    SHAPE,
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

HERE = scenario("IX-17")
RANKS = HERE.dims["fsdp"] * HERE.dims["ep"]


def sharded(engine: Any, world: World) -> tuple[MoeDecoder, Any]:
    """The decoder, and the mesh of the ranks that have rows of their own: all with one part of the heads."""
    mesh = HERE.mesh(world)
    ranks = engine.flatten_mesh(mesh[("fsdp", "ep")], "data")
    model = whole(world)
    engine.parallelize_module(model, mesh["tp"], plan(engine))
    style = engine.ExpertTensorParallel()
    return with_sharded_experts(engine, model, mesh[("ep", "tp")], mesh["fsdp"], ranks, style=style), ranks


def plan(engine: Any) -> dict[str, Any]:
    """Everything that is not a layer of experts, whose ranks of one group all have the group's tokens."""
    everywhere = engine.Replicate()
    dense = range(SHAPE.dense_layers)
    columns = ["blocks.*.attention.q", "blocks.*.attention.k", "blocks.*.attention.v"]
    columns += [f"blocks.{place}.ffn.{name}" for place in dense for name in ("gate", "up")]
    rows = ["blocks.*.attention.o", *(f"blocks.{place}.ffn.down" for place in dense)]
    return {
        "embedding": engine.RowwiseParallel(input_layouts=everywhere),
        **{name: engine.ColwiseParallel() for name in columns},
        **{name: engine.RowwiseParallel() for name in rows},
        "output": engine.ColwiseParallel(output_layouts=everywhere),
    }


@contract("IX-17")
def test_trains_as_a_single_card_does(engine, world, ledger):
    """Loss with its balancing part, norm, gradients and parameters of three steps are the single card's."""
    rows = batches(world, RANKS)
    candidate = trained(engine, *sharded(engine, world), rows)
    assert_parity(candidate, trained_on_one_card(world, rows), ledger["ep_fsdp_fp32"])


@contract("IX-17")
def test_shards_are_gathered_and_reduced_as_without_division(engine, world):
    """Over the ranks of shards a step of divided layers starts what one does whose heads and experts are whole."""
    (model, ranks), mesh = sharded(engine, world), HERE.mesh(world)
    undivided = with_sharded_experts(engine, whole(world), mesh["ep"], mesh["fsdp"], ranks)
    rows = batches(world, RANKS)[0].part(ranks.get_local_rank(), RANKS)
    assert_as_undivided(
        lambda one: loss(one, rows, engine=engine, ranks=ranks).backward(), model, undivided, mesh["fsdp"], ranks
    )


@contract("IX-17")
def test_life_cycle_is_closed(engine, world):
    """Groups' collectives come in one order; after a step nothing is gathered, no hook is left, nothing has grown."""
    model, ranks = sharded(engine, world)
    update = optimizer(model.parameters())
    mine = batches(world, RANKS)[0].part(ranks.get_local_rank(), RANKS)

    def backward() -> None:
        loss(model, mine, engine=engine, ranks=ranks).backward()

    with trace.collectives() as sent:
        backward()
    assert_same_order(world, sent)
    assert_closed(backward, update, model)
