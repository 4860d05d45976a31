"""Training with some parameters frozen, against a single card."""

from __future__ import annotations

from functools import partial

import torch

from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    each_layout,
    gradients,
    loss,
    mine,
    network,
    plain_or_demanding,
    shards,
    wrap,
)
from hyper_parallel_tests.harness import (
    assert_bitwise_repeatable,
    assert_equal,
    assert_parity,
    contract,
    mean_over_ranks,
    trace,
    train,
    train_baseline,
)

# A whole layer, and of another one the weight alone: frozen beside trained in one unit.
FROZEN = {"layers.0.weight", "layers.1.weight", "layers.1.bias"}
FLOAT32_BYTES = 4
adamw = partial(torch.optim.AdamW, lr=0.01)


def half_frozen(world, width):
    model = network(world, width)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in FROZEN)
    return model


def sharded_half_frozen(engine, world, layout, width, comm_fusion):
    model = half_frozen(world, width)
    return wrap(engine, model, model.layers, layout.mesh(world), comm_fusion=comm_fusion)


def elements(sent, name):
    """Elements in each collective of a name, in order of size."""
    return sorted(one.bytes // FLOAT32_BYTES for one in sent.of(name))


def batches(world, width):
    return [batch(world, seed=step, width=width) for step in range(3)]


def train_sharded(world, model, width):
    rows = [mine(world, one) for one in batches(world, width)]
    return train(model, rows, loss, optimizer=adamw, average=mean_over_ranks)


@contract("FSDP-L2-02")
@each_layout
@plain_or_demanding
def test_frozen_params_mixed_training(engine, world, ledger, layout, width, comm_fusion):
    """Frozen parameters keep no gradient and their data, the others train as on a single card."""
    model = sharded_half_frozen(engine, world, layout, width, comm_fusion)
    before = {name: shards(engine, model)[name].clone() for name in FROZEN}
    candidate = train_sharded(world, model, width)
    baseline = train_baseline(half_frozen(world, width), batches(world, width), loss, optimizer=adamw)
    assert_parity(candidate, baseline, ledger[layout.row])
    assert not FROZEN & gradients(engine, model).keys()
    assert all(one.grad is None for name, one in model.named_parameters() if name in FROZEN)
    after = {name: shards(engine, model)[name] for name in FROZEN}
    assert_equal(after, before, what="frozen parameters")


@contract("FSDP-L2-02")
@each_layout
@plain_or_demanding
def test_frozen_params_are_not_reduced(engine, world, layout, width, comm_fusion):
    """Reductions over shards and replicas carry the trained parameters' gradients and nothing for the frozen ones."""
    model = sharded_half_frozen(engine, world, layout, width, comm_fusion)
    value = loss(model, mine(world, batch(world, width=width)))
    with trace.collectives() as sent:
        value.backward()
    shards = world.size // layout.replicas
    rows = -(-width // shards)
    # Of layers.0 the bias, of layers.2 weight and bias.
    each_rank = [rows, rows * width + rows] if comm_fusion else [rows, rows, rows * width]
    assert elements(sent, "reduce_scatter") == ([shards * one for one in each_rank] if shards > 1 else [])
    assert elements(sent, "all_reduce") == (each_rank if layout.replicas > 1 else [])


@contract("FSDP-L2-02")
@each_layout
@plain_or_demanding
def test_frozen_params_training_repeats_bit_by_bit(engine, world, layout, width, comm_fusion):
    """The same training again in the same process gives the same bits."""
    assert_bitwise_repeatable(
        lambda: train_sharded(world, sharded_half_frozen(engine, world, layout, width, comm_fusion), width).steps
    )
