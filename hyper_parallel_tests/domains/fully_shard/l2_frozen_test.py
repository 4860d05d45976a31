"""Training with some parameters frozen, against a single card."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hyper_parallel_tests.domains.fully_shard.setting import (
    LAYOUTS,
    WIDTH,
    batch,
    gradients,
    loss,
    mine,
    network,
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
)

# A whole layer, and of another one the weight alone: frozen beside trained in one unit.
FROZEN = {"layers.0.weight", "layers.1.weight", "layers.1.bias"}
FLOAT32_BYTES = 4
adamw = partial(torch.optim.AdamW, lr=0.01)

each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
either_fusion = pytest.mark.parametrize("comm_fusion", [False, True], ids=["single", "fused"])


def half_frozen(world):
    model = network(world)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in FROZEN)
    return model


def sharded_half_frozen(engine, world, layout, comm_fusion):
    model = half_frozen(world)
    return wrap(engine, model, model.layers, layout.mesh(world), comm_fusion=comm_fusion)


def elements(sent, name):
    """Elements in each collective of a name, in order of size."""
    return sorted(one.bytes // FLOAT32_BYTES for one in sent.of(name))


def train_sharded(world, model):
    rows = [mine(world, batch(world, seed=step)) for step in range(3)]
    return train(model, rows, loss, optimizer=adamw, average=mean_over_ranks)


@contract("FSDP-L2-02")
@each_layout
@either_fusion
def test_frozen_params_mixed_training(engine, world, ledger, layout, comm_fusion):
    """Frozen parameters keep no gradient and their data, the others train as on a single card."""
    model = sharded_half_frozen(engine, world, layout, comm_fusion)
    before = {name: shards(engine, model)[name].clone() for name in FROZEN}
    candidate = train_sharded(world, model)
    rows = [batch(world, seed=step) for step in range(3)]
    baseline = train(half_frozen(world), rows, loss, optimizer=adamw)
    assert_parity(candidate, baseline, ledger[layout.row])
    assert not FROZEN & gradients(engine, model).keys()
    assert all(one.grad is None for name, one in model.named_parameters() if name in FROZEN)
    after = {name: shards(engine, model)[name] for name in FROZEN}
    assert_equal(after, before, what="frozen parameters")


@contract("FSDP-L2-02")
@each_layout
@either_fusion
def test_frozen_params_are_not_reduced(engine, world, layout, comm_fusion):
    """Reductions over shards and replicas carry the trained parameters' gradients and nothing for the frozen ones."""
    model = sharded_half_frozen(engine, world, layout, comm_fusion)
    value = loss(model, mine(world, batch(world)))
    with trace.collectives() as sent:
        value.backward()
    shards = world.size // layout.replicas
    rows = -(-WIDTH // shards)
    # Of layers.0 the bias, of layers.2 weight and bias.
    each_rank = [rows, rows * WIDTH + rows] if comm_fusion else [rows, rows, rows * WIDTH]
    assert elements(sent, "reduce_scatter") == ([shards * one for one in each_rank] if shards > 1 else [])
    assert elements(sent, "all_reduce") == (each_rank if layout.replicas > 1 else [])


@contract("FSDP-L2-02")
@each_layout
def test_frozen_params_training_repeats_bit_by_bit(engine, world, layout):
    """The same training again in the same process gives the same bits."""
    assert_bitwise_repeatable(
        lambda: train_sharded(world, sharded_half_frozen(engine, world, layout, comm_fusion=True)).steps
    )
