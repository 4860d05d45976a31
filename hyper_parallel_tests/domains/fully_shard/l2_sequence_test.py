"""Training on rows whose length changes from step to step, against a single card."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from hyper_parallel_tests.domains.fully_shard.setting import either_fusion, mine, parts, shards, wrap
from hyper_parallel_tests.harness import (
    assert_bitwise_repeatable,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)
from hyper_parallel_tests.models.decoder import DecoderShape, decoder, decoder_batch, decoder_loss

# Longer, shorter, odd and the least there is.
LENGTHS = (16, 5, 23, 1, 12)
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def batches(world):
    shapes = [replace(DecoderShape(), seq=length) for length in LENGTHS]
    return [decoder_batch(step, 2 * world.size, shape).to(world.device) for step, shape in enumerate(shapes)]


def shapes_of(tensors):
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def train_sharded(engine, world, comm_fusion):
    """The run, and the shapes of this rank's shards before each step and after the last."""
    model, shapes = decoder().to(world.device), []
    wrap(engine, model, model.blocks, world.mesh(dp=world.size), comm_fusion=comm_fusion)

    def loss(model, rows):
        shapes.append(shapes_of(shards(engine, model)))
        return decoder_loss(model, rows)

    rows = [mine(world, one) for one in batches(world)]
    track = train(model, rows, loss, optimizer=sgd, average=mean_over_ranks)
    return track, [*shapes, shapes_of(shards(engine, model))]


@contract("FSDP-L2-08")
@pytest.mark.watchdog(60)
@either_fusion
def test_dynamic_sequence_length(engine, world, ledger, comm_fusion):
    """Five steps of different lengths end, with finite losses and norms, unchanged shapes, and single-card values."""
    candidate, shapes = train_sharded(engine, world, comm_fusion)
    assert [math.isfinite(step.loss) for step in candidate.steps] == [True] * len(LENGTHS)
    assert [math.isfinite(step.norm) for step in candidate.steps] == [True] * len(LENGTHS)
    mine_of_each = shapes_of(parts(world, dict(decoder().named_parameters())))
    assert shapes == [mine_of_each] * (len(LENGTHS) + 1)
    baseline = train_baseline(decoder().to(world.device), batches(world), decoder_loss, optimizer=sgd)
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])


@contract("FSDP-L2-08")
@either_fusion
def test_dynamic_sequence_length_repeats_bit_by_bit(engine, world, comm_fusion):
    """The same lengths again in the same process give the same bits."""
    assert_bitwise_repeatable(lambda: train_sharded(engine, world, comm_fusion)[0].steps)
