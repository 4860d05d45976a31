"""A forward that bypasses the hooks, and one under no_grad."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    either_fusion,
    full_now,
    gradients,
    loss,
    mine,
    network,
    parts,
    resident,
    sharded_network,
    single_card_gradients,
    single_card_parameters,
)
from hyper_parallel_tests.harness import assert_close, contract, in_clean_process, trace


def as_one_unit(engine, world, **options):
    """The network, wrapped in one call."""
    return engine.fully_shard(network(world), mesh=world.mesh(dp=world.size), **options)


def by_layer(engine, world, **options):
    """The network, wrapped layer by layer."""
    return sharded_network(engine, world, **options)


def assert_evaluated(engine, world, ledger, model, output) -> None:
    """The output is the plain module's, and the model holds shards."""
    expected = in_clean_process(network(world), mine(world, batch(world)).inputs)
    assert_close(output, expected, ledger["fsdp_1d_fp32"], what="output")
    whole = parts(world, single_card_parameters(world))
    assert_close(resident(engine, model), whole, ledger["exact"], what="what it leaves behind")


@contract("FS-1-05")
@either_fusion
def test_direct_forward_on_shards_is_an_error(engine, world, ledger, comm_fusion):
    """module.forward() gathers nothing and never computes with a shard: the error speaks of DTensors."""
    model, rows = as_one_unit(engine, world, comm_fusion=comm_fusion), mine(world, batch(world))
    with trace.collectives() as sent, pytest.raises(Exception, match="DTensor"):
        model.forward(rows.inputs)
    assert sent.ops() == []
    expected = in_clean_process(network(world), rows.inputs)
    assert_close(model(rows.inputs), expected, ledger["fsdp_1d_fp32"], what="output of a call")


@contract("FS-1-05")
@either_fusion
def test_direct_forward_after_unshard_computes(engine, world, ledger, comm_fusion):
    """With parameters gathered by hand module.forward() is the plain module's, and leaves them full."""
    model, rows = as_one_unit(engine, world, comm_fusion=comm_fusion), mine(world, batch(world))
    model.unshard()
    with trace.collectives() as sent:
        output = model.forward(rows.inputs)
    expected = in_clean_process(network(world), rows.inputs)
    assert_close(output, expected, ledger["fsdp_1d_fp32"], what="output")
    assert sent.ops() == []
    assert full_now(engine, model) == set(single_card_parameters(world))


@contract("FS-1-05")
@either_fusion
@pytest.mark.parametrize("wrapped", [as_one_unit, by_layer], ids=["one_unit", "by_layer"])
def test_forward_under_no_grad_leaves_shards(engine, world, ledger, wrapped, comm_fusion):
    """It computes with full parameters and leaves shards, each time, and a training step after it is right."""
    model, rows = wrapped(engine, world, comm_fusion=comm_fusion), mine(world, batch(world))
    for _ in range(2):
        with torch.no_grad():
            output = model(rows.inputs)
        assert_evaluated(engine, world, ledger, model, output)
    loss(model, rows).backward()
    assert full_now(engine, model) == set()
    expected = parts(world, single_card_gradients(world, batch(world)))
    assert_close(gradients(engine, model), expected, ledger["fsdp_1d_fp32"], what="gradients of a step after it")


@contract("FS-1-05")
@either_fusion
def test_forward_under_inference_mode_leaves_shards_that_train(engine, world, ledger, comm_fusion):
    """inference_mode is no_grad here: also as the very first forward it leaves a model that trains."""
    model, rows = by_layer(engine, world, comm_fusion=comm_fusion), mine(world, batch(world))
    with torch.inference_mode():
        output = model(rows.inputs)
    assert_evaluated(engine, world, ledger, model, output)
    loss(model, rows).backward()
    expected = parts(world, single_card_gradients(world, batch(world)))
    assert_close(gradients(engine, model), expected, ledger["fsdp_1d_fp32"], what="gradients of a step after it")
