"""Stages of a pipeline that are divided by tensor parallelism and sharded: three dimensions of a mesh."""

from __future__ import annotations

import torch

from hyper_parallel_tests.harness import assert_parity, contract, trace, train_baseline
from hyper_parallel_tests.interactions.decoder_stages import batches, loss, optimizer, pipeline_and_rows, whole
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario

HERE = scenario("IX-13")


@contract("IX-13")
def test_reduces_once_a_step(engine, world):
    """Each gradient is reduced over the shards once, when all micro-batches have been through the stage."""
    pipeline, (rows, *_) = pipeline_and_rows(engine, world, HERE.mesh(world))
    pipeline.run(rows)
    with trace.collectives() as sent:
        pipeline.run(rows)
    ops = [one.op for one in sent if one.op in {"recv", "reduce_scatter", "send"}]
    assert set(ops[ops.index("reduce_scatter") :]) == {"reduce_scatter"}
    parts = sum(one.to_local().numel() for one in pipeline.params.values()) * HERE.dims["fsdp"]
    assert sum(one.bytes for one in sent.of("reduce_scatter")) == parts * torch.float32.itemsize


@contract("IX-13")
def test_trains_as_a_single_card_does(engine, world, ledger):
    """Loss, norm, gradients and parameters of three steps are the single card's."""
    pipeline, rows = pipeline_and_rows(engine, world, HERE.mesh(world))
    candidate = pipeline.train(rows, optimizer=optimizer)
    baseline = train_baseline(whole(world), batches(world), loss, optimizer=optimizer)
    assert_parity(candidate, baseline.only(pipeline.params), ledger["pp_fsdp_fp32"])


@contract("IX-13")
def test_life_cycle_is_closed(engine, world):
    """After a step each parameter is this rank's shard of its part, no message is under way and nothing has grown."""
    pipeline, (rows, *_) = pipeline_and_rows(engine, world, HERE.mesh(world))
    assert_closed(lambda: pipeline.run(rows), optimizer(pipeline.model.parameters()), pipeline.model)
