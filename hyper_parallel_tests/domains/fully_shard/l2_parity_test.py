"""Training with fully_shard against a single card and against DDP."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from hyper_parallel_tests.domains.fully_shard.setting import (
    ROWS_PER_RANK,
    batch,
    each_width,
    either_fusion,
    either_width,
    gradients,
    loss,
    mine,
    network,
    parts,
    plain_or_demanding,
    sharded_network,
    wrap,
)
from hyper_parallel_tests.harness import (
    assert_bitwise_repeatable,
    assert_close,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)
from hyper_parallel_tests.models.decoder import decoder, decoder_batch, decoder_loss

STEPS = 5
OPTIMIZERS = {
    "sgd_momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}

each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


def batches(world, width, steps=STEPS):
    return [batch(world, seed=step, width=width) for step in range(steps)]


def train_on_ranks(world, model, optimizer, width, steps=STEPS):
    """Each rank has its own rows; the loss is the mean over the ranks."""
    rows = [mine(world, one) for one in batches(world, width, steps)]
    return train(model, rows, loss, optimizer=optimizer, average=mean_over_ranks)


def train_on_one_card(world, optimizer, width, steps=STEPS):
    """All rows on one card, without any engine."""
    return train_baseline(network(world, width), batches(world, width, steps), loss, optimizer=optimizer)


@contract("FS-2-01")
@each_optimizer
@each_width
@either_fusion
def test_trains_as_a_single_card_does(engine, world, ledger, optimizer, width, comm_fusion):
    """Loss, gradients and parameters are the single card's at each of five steps, so after two and five."""
    model = sharded_network(engine, world, width, comm_fusion=comm_fusion)
    candidate = train_on_ranks(world, model, optimizer, width)
    assert_parity(candidate, train_on_one_card(world, optimizer, width), ledger["fsdp_1d_fp32"])


@contract("FS-2-01")
@each_optimizer
@each_width
def test_trains_as_ddp_does(engine, world, ledger, optimizer, width):
    """The same against DistributedDataParallel on the same ranks and rows."""
    rows = [mine(world, one) for one in batches(world, width)]
    baseline = train_baseline(network(world, width), rows, loss, wrap=DDP, optimizer=optimizer, average=mean_over_ranks)
    candidate = train_on_ranks(world, sharded_network(engine, world, width), optimizer, width)
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])


@contract("FS-2-01")
@each_width
@either_fusion
def test_each_rank_holds_its_shard_of_the_gradients(engine, world, ledger, width, comm_fusion):
    """In the second step each rank's gradient is its own part of the single card's, no other rank's."""
    model = sharded_network(engine, world, width, comm_fusion=comm_fusion)
    train_on_ranks(world, model, OPTIMIZERS["adamw"], width, steps=2)
    expected = parts(world, train_on_one_card(world, OPTIMIZERS["adamw"], width, steps=2).steps[-1].grads)
    assert_close(
        gradients(engine, model),
        expected,
        ledger["fsdp_1d_fp32"],
        what="shards of the gradients",
        zero_because="" if any(one.numel() for one in expected.values()) else "this rank holds no row",
    )


@contract("FS-2-01")
@each_optimizer
@either_width
def test_replicated_parameters_train_too(engine, world, ledger, optimizer, width):
    """Biases kept whole on every rank follow the single card's as the sharded weights do."""
    model = sharded_network(
        engine, world, width, shard_placement_fn=lambda one: engine.Replicate() if one.ndim == 1 else None
    )
    candidate = train_on_ranks(world, model, optimizer, width)
    assert_parity(candidate, train_on_one_card(world, optimizer, width), ledger["fsdp_1d_fp32"])


@contract("FS-2-01")
@each_optimizer
@either_fusion
def test_decoder_trains_as_a_single_card_does(engine, world, ledger, optimizer, comm_fusion):
    """A decoder with tied output, wrapped block by block, follows the single card's over two steps."""
    rows = [decoder_batch(step, ROWS_PER_RANK * world.size).to(world.device) for step in range(2)]
    model = decoder().to(world.device)
    wrap(engine, model, model.blocks, world.mesh(dp=world.size), comm_fusion=comm_fusion)
    own_rows = [mine(world, one) for one in rows]
    candidate = train(model, own_rows, decoder_loss, optimizer=optimizer, average=mean_over_ranks)
    baseline = train_baseline(decoder().to(world.device), rows, decoder_loss, optimizer=optimizer)
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])


@contract("FS-2-01")
@plain_or_demanding
def test_training_repeats_bit_by_bit(engine, world, width, comm_fusion):
    """The same training again in the same process gives the same bits."""

    def run():
        model = sharded_network(engine, world, width, comm_fusion=comm_fusion)
        return train_on_ranks(world, model, OPTIMIZERS["adamw"], width).steps

    assert_bitwise_repeatable(run)
