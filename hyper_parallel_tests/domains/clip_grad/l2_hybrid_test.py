"""Training with clipping against a single card: meshes of two dimensions."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.clip_grad import experts
from hyper_parallel_tests.domains.clip_grad.layouts import hsdp, tp_fsdp
from hyper_parallel_tests.domains.clip_grad.pipeline import Pipeline, halves
from hyper_parallel_tests.domains.clip_grad.reference import NORM_TYPES
from hyper_parallel_tests.domains.clip_grad.setting import (
    EVEN,
    batches,
    loss,
    mine,
    network,
    sgd,
    train_on_one_card,
)
from hyper_parallel_tests.harness import assert_parity, contract, mean_over_ranks, train

BOUND = 0.1

each_norm = pytest.mark.parametrize("norm_type", NORM_TYPES)


@contract("CG-2-01")
@each_norm
def test_hybrid_sharded(engine, world, ledger, norm_type):
    """Two replicas of two shards: the replicas' copies count once."""
    p = NORM_TYPES[norm_type]
    candidate = train(
        hsdp(engine, world),
        [mine(world, one) for one in batches(world)],
        loss,
        optimizer=sgd,
        average=mean_over_ranks,
        before_update=lambda model: engine.clip_grad_norm_(model.parameters(), BOUND, p),
    )
    baseline = train_on_one_card(network(world), batches(world), BOUND, p)
    assert_parity(candidate, baseline, ledger["hsdp_2d_fp32"])


@contract("CG-2-01")
@each_norm
def test_fully_sharded_tensor_parallel(engine, world, ledger, norm_type):
    """Layers divided in two ways and a layer divided in one: two meshes make one norm."""
    p, rows = NORM_TYPES[norm_type], batches(world, EVEN)
    groups = world.mesh(dp=world.size // 2, tp=2)["dp"]
    candidate = train(
        tp_fsdp(engine, world),
        [one.part(groups.get_local_rank(), groups.size()) for one in rows],
        loss,
        optimizer=sgd,
        average=mean_over_ranks,
        before_update=lambda model: engine.clip_grad_norm_(model.parameters(), BOUND, p),
    )
    baseline = train_on_one_card(network(world, EVEN), rows, BOUND, p)
    assert_parity(candidate, baseline, ledger["tp_fsdp_fp32"])


@contract("CG-2-01")
@each_norm
def test_pipeline_of_sharded_stages(engine, world, ledger, norm_type):
    """Each stage is divided over two ranks: the norm is joined over shards first, then over stages."""
    p, rows, mesh = NORM_TYPES[norm_type], batches(world), world.mesh(pp=2, dp=world.size // 2)
    stage = halves(network(world))[mesh.get_local_rank("pp")]
    own = {name for name, _ in stage.named_parameters()}
    candidate = train(
        engine.fully_shard(stage, mesh=mesh["dp"]),
        [one.part(mesh.get_local_rank("dp"), mesh["dp"].size()) for one in rows],
        Pipeline(engine, mesh["pp"]).run,
        optimizer=sgd,
        average=mean_over_ranks,
        backward=None,
        before_update=lambda model: engine.clip_grad_norm_(model.parameters(), BOUND, p, pp_mesh=mesh["pp"]),
    )
    baseline = train_on_one_card(network(world), rows, BOUND, p).only(own)
    assert_parity(candidate, baseline, ledger["pp_fsdp_fp32"])


@contract("CG-2-01")
@each_norm
def test_sharded_experts_beside_a_dense_gate(engine, world, ledger, norm_type):
    """Experts divided over one dimension and sharded over the other count once beside a gate sharded over both."""
    p, mesh = NORM_TYPES[norm_type], world.mesh(edp=world.size // 2, ep=2)
    model = experts.divide(engine, experts.experts(world), mesh["ep"])
    for part, its_mesh in ((model.up, mesh["edp"]), (model.down, mesh["edp"]), (model.gate, world.mesh(dp=world.size))):
        engine.fully_shard(part, mesh=its_mesh)
        part.set_reduce_op_type("sum")
    candidate = experts.train_experts(engine, world, model, BOUND, p)
    rows = experts.batches(world)
    baseline = train_on_one_card(experts.experts(world), rows, BOUND, p, loss=experts.mean_loss)
    # Every expert sees every row, and there is no auxiliary loss: the wider bands of routed experts are not these'.
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])
