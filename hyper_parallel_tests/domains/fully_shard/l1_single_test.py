"""A world of one rank: fully_shard sends nothing and changes nothing."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    either_fusion,
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
from hyper_parallel_tests.harness import (
    assert_close,
    assert_parity,
    contract,
    in_clean_process,
    trace,
    train,
    train_baseline,
)

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


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
    assert_parity(candidate, train_baseline(network(world), batches, loss, optimizer=SGD), ledger["fsdp_1d_fp32"])


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


SPECIAL = {
    "replicated": lambda engine, weight: {"replicate_params": {weight}},
    "ignored": lambda engine, weight: {"ignored_params": {weight}},
    "divided_on_the_last_dimension": lambda engine, weight: {
        "shard_placement_fn": lambda one: engine.Shard(one.ndim - 1)
    },
}


@contract("FSDP-L1-07")
@pytest.mark.parametrize("special", SPECIAL.values(), ids=SPECIAL)
def test_alone_special_parameters_train_too(engine, world, ledger, special):
    """Replicated, ignored and differently divided parameters train as in the plain module."""
    model = network(world)
    options = special(engine, model.layers[0].weight)
    wrap(engine, model, model.layers, world.mesh(dp=world.size), **options)
    batches = [batch(world, seed=step) for step in range(2)]
    candidate = train(model, batches, loss, optimizer=SGD)
    assert_parity(candidate, train_baseline(network(world), batches, loss, optimizer=SGD), ledger["fsdp_1d_fp32"])


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
    model, rows = sharded_network(engine, world), [batch(world, seed=step) for step in range(2)]
    expected = in_clean_process(outputs_before_steps, network(world), rows)
    assert_close(outputs_before_steps(model, rows), expected, ledger["fsdp_1d_fp32"], what="output before each step")


def outputs_before_steps(model, batches) -> list[torch.Tensor]:
    """Trains, and shows before each step what the first batch's outputs are under no_grad."""
    optimizer, outputs = SGD(model.parameters()), []
    for rows in batches:
        with torch.no_grad():
            outputs.append(model(batches[0].inputs))
        loss(model, rows).backward()
        optimizer.step()
        optimizer.zero_grad()
    return outputs
