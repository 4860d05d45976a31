"""Parameters that are not sharded in the default way: ignored, replicated, divided on another dimension."""

from __future__ import annotations

from torch import nn

from hyper_parallel_tests.domains.fully_shard.reference import part
from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    either_fusion,
    gradients,
    loss,
    mine,
    network,
    parts,
    sharded_network,
    single_card_gradients,
    wrap,
)
from hyper_parallel_tests.harness import assert_close, assert_differs, contract, in_clean_process, trace

BIASES = ["layers.0.bias", "layers.1.bias", "layers.2.bias"]


@contract("FSDP-L1-06")
def test_ignored_params(engine, world, ledger):
    """An ignored parameter is a plain full tensor with this rank's own gradient; the others are reduced."""
    model = network(world)
    ignored, shape = model.layers[0].weight, model.layers[0].weight.shape
    wrap(engine, model, model.layers, world.mesh(dp=world.size), ignored_params={ignored})
    with trace.collectives() as sent:
        loss(model, mine(world, batch(world))).backward()

    assert model.layers[0].weight is ignored
    assert type(ignored) is nn.Parameter
    assert ignored.shape == shape
    own = single_card_gradients(world, mine(world, batch(world)))["layers.0.weight"]
    assert_close(ignored.grad, own, ledger["fsdp_1d_fp32"], what="gradient of the ignored parameter")

    expected = single_card_gradients(world, batch(world))
    averaged = expected.pop("layers.0.weight")
    assert_differs(ignored.grad, averaged, ledger["fsdp_1d_fp32"], what="gradient of the ignored parameter")
    assert len(sent.of("reduce_scatter")) == len(expected)
    assert_close(gradients(engine, model), parts(world, expected), ledger["fsdp_1d_fp32"], what="all others")


@contract("FSDP-L1-07")
def test_custom_shard_placement_fn(engine, world, ledger):
    """Weights divided on dimension 1 have the single card's loss and gradients, and shards of that shape."""
    model = sharded_network(engine, world, shard_placement_fn=lambda one: engine.Shard(one.ndim - 1))
    for one in engine.managed_parameters(model):
        assert one.shard.shape == (*one.full_shape[:-1], one.full_shape[-1] // world.size)

    rows = mine(world, batch(world))
    value = loss(model, rows)
    value.backward()
    assert_close(value, in_clean_process(loss, network(world), rows), ledger["fsdp_1d_fp32"], what="loss")
    expected = {
        name: part(grad, dim=grad.ndim - 1, index=world.rank, count=world.size)
        for name, grad in single_card_gradients(world, batch(world)).items()
    }
    assert_close(gradients(engine, model), expected, ledger["fsdp_1d_fp32"], what="gradients")


def assert_biases_are_replicated(engine, world, ledger, model) -> None:
    """Biases are whole on every rank, weights are not, and both get the single card's gradients."""
    replicated = {one.name for one in engine.managed_parameters(model) if one.shard.shape == one.full_shape}
    assert sorted(replicated) == BIASES
    loss(model, mine(world, batch(world))).backward()
    full = single_card_gradients(world, batch(world))
    expected = parts(world, full) | {name: full[name] for name in BIASES}
    assert_close(gradients(engine, model), expected, ledger["fsdp_1d_fp32"], what="gradients")


@contract("FSDP-L1-07")
def test_custom_shard_placement_fn_replicates(engine, world, ledger):
    """Replicate keeps the full shape on every rank, and the gradients are reduced all the same."""
    model = sharded_network(engine, world, shard_placement_fn=lambda one: engine.Replicate() if one.ndim == 1 else None)
    assert_biases_are_replicated(engine, world, ledger, model)


@contract("FSDP-L1-07")
@either_fusion
def test_replicate_params_equal_a_placement_function(engine, world, ledger, comm_fusion):
    """replicate_params places a parameter as Replicate from shard_placement_fn does, fused or not."""
    model = network(world)
    biases = {layer.bias for layer in model.layers}
    wrap(engine, model, model.layers, world.mesh(dp=world.size), replicate_params=biases, comm_fusion=comm_fusion)
    assert_biases_are_replicated(engine, world, ledger, model)
