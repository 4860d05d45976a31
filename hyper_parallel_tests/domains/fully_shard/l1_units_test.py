"""Which parameters act together: fused communication, and modules given as a list."""

from __future__ import annotations

import pytest
from torch import nn

from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    full_now,
    gradients,
    loss,
    mine,
    network,
    sharded_network,
)
from hyper_parallel_tests.harness import assert_close, contract, trace


@contract("FSDP-L1-08")
def test_comm_fusion_numerical_correctness(engine, world, ledger):
    """Loss and every gradient are the same with communication fused and not."""
    losses, grads = [], []
    for comm_fusion in (True, False):
        model = sharded_network(engine, world, comm_fusion=comm_fusion)
        value = loss(model, mine(world, batch(world)))
        value.backward()
        losses.append(value.detach())
        grads.append(gradients(engine, model))
    assert_close(losses[0], losses[1], ledger["comm_fusion_fp32"], what="loss with fusion")
    assert_close(grads[0], grads[1], ledger["comm_fusion_fp32"], what="gradients with fusion")


@contract("FSDP-L1-08")
@pytest.mark.parametrize(("comm_fusion", "messages"), [(False, 6), (True, 3)], ids=["single", "fused"])
def test_comm_fusion_numerical_correctness_is_of_two_things(engine, world, comm_fusion, messages):
    """Fused, each of three layers sends one message; otherwise each of their six parameters does."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    with trace.collectives() as sent:
        loss(model, mine(world, batch(world))).backward()
    assert len(sent.of("reduce_scatter")) == messages
    assert len(sent.of("all_gather")) == 2 * messages, "forward and backward each gather"


def wrapped_pair(engine, world):
    """Two layers of the network, wrapped as a list."""
    return engine.fully_shard(list(network(world).layers[:2]), mesh=world.mesh(dp=world.size))


def backward(world, first, second) -> None:
    loss(nn.Sequential(first, second), mine(world, batch(world))).backward()


@contract("FSDP-L1-09")
def test_fully_shard_list_input(engine, world):
    """A list comes back as the list, its modules are HSDPModules, and both get finite gradients."""
    modules = list(network(world).layers[:2])
    returned = engine.fully_shard(modules, mesh=world.mesh(dp=world.size))
    assert isinstance(returned, list)
    assert [id(one) for one in returned] == [id(one) for one in modules]
    assert all(isinstance(module, engine.HSDPModule) for module in returned)

    backward(world, *returned)
    for module in returned:
        found = gradients(engine, module)
        assert sorted(found) == ["bias", "weight"]
        assert all(grad.isfinite().all() for grad in found.values())


@contract("FSDP-L1-09")
def test_fully_shard_list_input_is_gathered_independently(engine, world):
    """unshard, reshard and the reshard settings of one module leave the other one of the list alone."""
    first, second = wrapped_pair(engine, world)
    first.unshard()
    assert full_now(engine, first) == {"weight", "bias"}
    assert full_now(engine, second) == set()
    first.reshard()
    first.set_reshard_after_forward(False)
    second(first(mine(world, batch(world)).inputs))
    assert full_now(engine, first) == {"weight", "bias"}
    assert full_now(engine, second) == set()


@contract("FSDP-L1-09")
def test_fully_shard_list_input_is_reduced_independently(engine, world):
    """Gradient sync switched off for one module of the list holds back its gradients alone."""
    first, second = wrapped_pair(engine, world)
    first.set_requires_gradient_sync(False)
    backward(world, first, second)
    assert gradients(engine, first) == {}
    assert sorted(gradients(engine, second)) == ["bias", "weight"]
