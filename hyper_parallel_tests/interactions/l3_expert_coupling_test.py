"""Experts divided over two ranks and sharded over two, beside layers that are sharded over two and copied to two."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.harness import World, assert_close, assert_parity, contract, trace
from hyper_parallel_tests.interactions.communication import assert_same_order
from hyper_parallel_tests.interactions.experts import (
    batches,
    loss,
    norms_of_experts,
    optimizer,
    trained,
    trained_on_one_card,
    whole,
    with_sharded_experts,
)
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.moe import MoeDecoder

HERE = scenario("FSDP-L2-10")


def sharded(engine: Any, world: World) -> tuple[MoeDecoder, Any]:
    """The decoder, and the mesh of all ranks; ranks that share experts out are replicas of everything else."""
    mesh = HERE.mesh(world)
    model = with_sharded_experts(engine, whole(world), mesh["ep"], mesh["fsdp"], mesh)
    return model, engine.flatten_mesh(mesh, "data")


@contract("FSDP-L2-10")
def test_ep_fsdp_coupling(engine, world, ledger):
    """Over three steps loss, norm, gradients, parameters and the norm of each expert's gradient are one card's."""
    rows = batches(world, world.size)
    candidate, baseline = trained(engine, *sharded(engine, world), rows), trained_on_one_card(world, rows)
    row = ledger["ep_fsdp_fp32"]
    norms, expected = norms_of_experts(candidate), norms_of_experts(baseline)
    assert_close(norms, expected, row, what="norms of the experts' gradients, by step")
    assert_parity(candidate, baseline, row)


@contract("FSDP-L2-10")
def test_communication_does_not_conflict(engine, world):
    """Exchanges of rows and of parameters come in one order on all ranks of a group, whatever another group does."""
    model, ranks = sharded(engine, world)
    for rows in batches(world, world.size, steps=2):
        with trace.collectives() as sent:
            loss(model, rows.part(world.rank, world.size), engine=engine, ranks=ranks).backward()
        assert_same_order(world, sent)


@contract("FSDP-L2-10")
def test_life_cycle_is_closed(engine, world):
    """After a step each rank has its shards of its experts, no hook is left and nothing has grown."""
    model, ranks = sharded(engine, world)
    update = optimizer(model.parameters())
    mine = batches(world, world.size)[0].part(world.rank, world.size)
    assert_closed(lambda: loss(model, mine, engine=engine, ranks=ranks).backward(), update, model)
