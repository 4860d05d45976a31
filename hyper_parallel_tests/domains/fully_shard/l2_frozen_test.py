"""Training with some parameters frozen, against a single card."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hyper_parallel_tests.domains.fully_shard.setting import (
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

either_fusion = pytest.mark.parametrize("comm_fusion", [False, True], ids=["single", "fused"])


def half_frozen(world):
    model = network(world)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in FROZEN)
    return model


def sharded_half_frozen(engine, world, comm_fusion):
    model = half_frozen(world)
    return wrap(engine, model, model.layers, world.mesh(dp=world.size), comm_fusion=comm_fusion)


def train_sharded(world, model):
    rows = [mine(world, batch(world, seed=step)) for step in range(3)]
    return train(model, rows, loss, optimizer=adamw, average=mean_over_ranks)


@contract("FSDP-L2-02")
@either_fusion
def test_frozen_params_mixed_training(engine, world, ledger, comm_fusion):
    """Frozen parameters keep no gradient and their data, the others train as on a single card."""
    model = sharded_half_frozen(engine, world, comm_fusion)
    before = {name: shards(engine, model)[name].clone() for name in FROZEN}
    candidate = train_sharded(world, model)
    rows = [batch(world, seed=step) for step in range(3)]
    baseline = train(half_frozen(world), rows, loss, optimizer=adamw)
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])
    assert not FROZEN & gradients(engine, model).keys()
    assert all(one.grad is None for name, one in model.named_parameters() if name in FROZEN)
    after = {name: shards(engine, model)[name] for name in FROZEN}
    assert_equal(after, before, what="frozen parameters")


@contract("FSDP-L2-02")
@either_fusion
def test_frozen_params_are_not_reduced(engine, world, comm_fusion):
    """Reduce-scatters carry the trained parameters' gradients and nothing for the frozen ones."""
    model = sharded_half_frozen(engine, world, comm_fusion)
    value = loss(model, mine(world, batch(world)))
    with trace.collectives() as sent:
        value.backward()
    trained = {"layers.0.bias": WIDTH, "layers.2.weight": WIDTH * WIDTH, "layers.2.bias": WIDTH}
    reduced = sorted(one.bytes // FLOAT32_BYTES for one in sent.of("reduce_scatter"))
    assert reduced == ([WIDTH, WIDTH * WIDTH + WIDTH] if comm_fusion else sorted(trained.values()))


@contract("FSDP-L2-02")
def test_frozen_params_training_repeats_bit_by_bit(engine, world):
    """The same training again in the same process gives the same bits."""
    assert_bitwise_repeatable(lambda: train_sharded(world, sharded_half_frozen(engine, world, comm_fusion=True)).steps)
