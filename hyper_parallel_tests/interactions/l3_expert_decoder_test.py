"""The FSDP plan's decoder with experts, over replicas, shards and ranks that share experts out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.harness import (
    World,
    assert_bitwise_repeatable,
    assert_close,
    assert_parity,
    contract,
    trace,
)
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.interactions.communication import assert_same_order
from hyper_parallel_tests.interactions.experts import (
    SHAPE,
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
from hyper_parallel_tests.models.moe import PLAN, MoeDecoder, MoeShape

HERE = scenario("FSDP-L3-03")


def sharded(engine: Any, world: World, shape: MoeShape) -> tuple[MoeDecoder, Any]:
    """The decoder, and the mesh of all ranks; experts are sharded over replicas and shards, as a hybrid mesh has it."""
    mesh = HERE.mesh(world)
    ranks = engine.flatten_mesh(mesh, "data")
    model = with_sharded_experts(engine, whole(world, shape), mesh["ep"], mesh[("replicate", "fsdp")], ranks)
    return model, ranks


def norms_of_dense_layers(track: Track) -> list[dict[str, Tensor]]:
    """Of each step: parameter that is no expert's -> its gradient's norm."""
    return [
        {name: torch.linalg.vector_norm(one) for name, one in step.grads.items() if ".experts." not in name}
        for step in track.steps
    ]


@contract("FSDP-L3-03")
def test_moe_llm_ep_fsdp(engine, world, ledger):
    """Total loss, dense layers' and each expert's gradient norms, all gradients and parameters are one card's."""
    rows = batches(world, world.size, PLAN, steps=2)
    candidate = trained(engine, *sharded(engine, world, PLAN), rows)
    baseline = trained_on_one_card(world, rows, PLAN)
    assert_close(
        norms_of_dense_layers(candidate),
        norms_of_dense_layers(baseline),
        ledger["ep_fsdp_fp32_dense"],
        what="norms of the dense layers' gradients, by step",
    )
    norms, expected = norms_of_experts(candidate), norms_of_experts(baseline)
    assert_close(norms, expected, ledger["ep_fsdp_fp32"], what="norms of the experts' gradients, by step")
    assert_parity(candidate, baseline, ledger["ep_fsdp_fp32"])


@contract("FSDP-L3-03")
def test_training_repeats_bit_by_bit(engine, world):
    """The same training again in the same process gives the same bits."""
    rows = batches(world, world.size, steps=2)
    assert_bitwise_repeatable(lambda: trained(engine, *sharded(engine, world, SHAPE), rows).steps)


@contract("FSDP-L3-03")
def test_communication_does_not_conflict(engine, world):
    """Exchanges of rows and of parameters come in one order on all ranks of a group, whatever another group does."""
    model, ranks = sharded(engine, world, SHAPE)
    for rows in batches(world, world.size, steps=2):
        with trace.collectives() as sent:
            loss(model, rows.part(world.rank, world.size), engine=engine, ranks=ranks).backward()
        assert_same_order(world, sent)


@contract("FSDP-L3-03")
def test_life_cycle_is_closed(engine, world):
    """After a step each rank has its shards of its experts, no hook is left and nothing has grown."""
    model, ranks = sharded(engine, world, SHAPE)
    update = optimizer(model.parameters())
    mine = batches(world, world.size)[0].part(world.rank, world.size)
    assert_closed(lambda: loss(model, mine, engine=engine, ranks=ranks).backward(), update, model)
