"""A world of one rank: fully_shard sends nothing and changes nothing."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    gradients,
    loss,
    network,
    pending_gradients,
    resident,
    sharded_network,
    shards,
    single_card_gradients,
    single_card_parameters,
    wrap,
)
from hyper_parallel_tests.harness import assert_close, assert_parity, contract, trace, train

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
either_fusion = pytest.mark.parametrize("comm_fusion", [False, True], ids=["single", "fused"])


@contract("FS-1-07")
@either_fusion
def test_alone_nothing_is_sent(engine, world, ledger, comm_fusion):
    """A step with gradient sync off and on starts no collective, and yields the plain module's gradients."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    batches = [batch(world, seed=step) for step in range(2)]
    with trace.collectives() as sent:
        for rows in batches:
            model.set_requires_gradient_sync(rows is batches[-1])
            loss(model, rows).backward()
    assert sent.ops() == []
    assert pending_gradients(engine, model) == {}
    expected = single_card_gradients(world, *batches)
    assert_close(gradients(engine, model), expected, ledger["fsdp_1d_fp32"], what="accumulated gradients")


@contract("FSDP-L1-03")
@either_fusion
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_alone_sum_is_average(engine, world, ledger, op, comm_fusion):
    """Either reduce op trains as the plain module does."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    model.set_reduce_op_type(op)
    batches = [batch(world, seed=step) for step in range(3)]
    candidate = train(model, batches, loss, optimizer=SGD)
    assert_parity(candidate, train(network(world), batches, loss, optimizer=SGD), ledger["fsdp_1d_fp32"])


@contract("FSDP-L1-05")
def test_alone_shards_are_the_full_parameters(engine, world, ledger):
    """Sharded or full, by hand or by forward, the module holds the whole parameters."""
    full = single_card_parameters(world)
    model = sharded_network(engine, world)
    handle = model.layers[0].unshard(async_op=True)
    handle.wait()
    for change in (model.unshard, model.reshard, lambda: model(batch(world).inputs)):
        change()
        assert_close(resident(engine, model), full, ledger["exact"], what="what the module holds")
        assert_close(shards(engine, model), full, ledger["exact"], what="shards")


@contract("FSDP-L1-07")
def test_alone_replicated_parameters_train_too(engine, world, ledger):
    """Replicated, divided on the last dimension and ignored parameters train as in the plain module."""
    model = network(world)
    first, second, _ = model.layers
    wrap(
        engine,
        model,
        model.layers,
        world.mesh(dp=world.size),
        replicate_params={first.weight},
        ignored_params={second.weight},
        shard_placement_fn=lambda one: engine.Shard(one.ndim - 1) if one is not first.weight else None,
    )
    batches = [batch(world, seed=step) for step in range(2)]
    candidate = train(model, batches, loss, optimizer=SGD)
    assert_parity(candidate, train(network(world), batches, loss, optimizer=SGD), ledger["fsdp_1d_fp32"])


@contract("FSDP-L1-10")
def test_alone_the_policy_casts_too(engine, world):
    """The dtypes in forward and of the gradients are the policy's also without communication."""
    model, seen = network(world), []
    model.layers[1].register_forward_hook(lambda layer, inputs, _: seen.extend([layer.weight.dtype, inputs[0].dtype]))
    policy = engine.MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)
    engine.fully_shard(model, mesh=world.mesh(dp=world.size), mp_policy=policy)
    output = model(batch(world).inputs)
    output.sum().backward()
    assert seen == [torch.bfloat16, torch.bfloat16]
    assert output.dtype == torch.float32
    assert {grad.dtype for grad in gradients(engine, model).values()} == {torch.float32}


@contract("FS-1-05")
def test_alone_forward_under_no_grad_is_the_modules(engine, world, ledger):
    """A forward under no_grad has the plain module's output, before and after an update."""
    model, single = sharded_network(engine, world), network(world)
    for step in range(2):
        with torch.no_grad():
            output = model(batch(world).inputs)
        assert_close(output, single(batch(world).inputs), ledger["fsdp_1d_fp32"], what=f"output before step {step}")
        for one in (model, single):
            optimizer = SGD(one.parameters())
            loss(one, batch(world, seed=step)).backward()
            optimizer.step()
            optimizer.zero_grad()
