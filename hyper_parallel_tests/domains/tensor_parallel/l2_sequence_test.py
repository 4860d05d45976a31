"""The same training with a divided sequence and without."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.tensor_parallel.networks import (
    EQUAL,
    GROUPED,
    TIED,
    decoder_batches,
    decoder_loss,
    divided_decoder,
    hidden_batches,
    logits,
    mesh_of,
    own_tokens,
    sgd,
    whole_decoder,
)
from hyper_parallel_tests.harness import assert_close, assert_parity, contract, train, train_baseline
from hyper_parallel_tests.models.seeding import build

SHAPES = {"equal": EQUAL, "grouped": GROUPED, "tied": TIED}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
# Adam squares gradients, so that one that is still partial would show.
OPTIMIZERS = {"sgd": sgd, "adam": partial(torch.optim.Adam, lr=1e-3, eps=1e-3, foreach=False)}

NORMS = {
    "layer_norm": lambda: nn.LayerNorm(16),
    "layer_norm_without_bias": lambda: nn.LayerNorm(16, bias=False),
    "rms_norm": lambda: nn.RMSNorm(16),
}


@contract("TP-2-02")
@each_shape
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training(engine, world, ledger, shape, optimizer):
    """With a divided sequence training is that of one card and that of tensor parallelism alone."""
    batches = decoder_batches(world, shape)
    with_sequence = train(
        divided_decoder(engine, world, shape, sequence=True), batches, decoder_loss, optimizer=optimizer
    )
    baseline = train_baseline(whole_decoder(world, shape), batches, decoder_loss, optimizer=optimizer)
    assert_parity(with_sequence, baseline, ledger["tp_fp32"])
    without = train(divided_decoder(engine, world, shape), batches, decoder_loss, optimizer=optimizer)
    assert_parity(with_sequence, without, ledger["tp_fp32"], own_because="a divided sequence changes no result")


@contract("TP-2-02")
@each_shape
def test_logits(engine, world, ledger, shape):
    """Logits with and without agree, and are those of one card."""
    tokens = decoder_batches(world, shape)[0].inputs
    found = logits(divided_decoder(engine, world, shape, sequence=True), tokens).detach()
    without = logits(divided_decoder(engine, world, shape), tokens).detach()
    assert_close(found, without, ledger["tp_fp32"], what="logits")
    assert_close(found, logits(whole_decoder(world, shape), tokens).detach(), ledger["tp_fp32"], what="logits")


@contract("TP-2-02")
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_norm(engine, world, ledger, norm):
    """A norm's output is that of this rank's tokens, and its parameters' gradients are those of all tokens."""
    inputs, weights = hidden_batches(world, 16)[0]
    whole = build(norm, 0).to(world.device)
    output = whole(inputs)
    (output * weights).sum().backward()
    layer = build(norm, 0).to(world.device)
    engine.parallelize_module(layer, mesh_of(world), engine.SequenceParallel(use_local_output=True))
    own = layer(own_tokens(world, inputs))
    (own * own_tokens(world, weights)).sum().backward()
    assert_close(own.detach(), own_tokens(world, output.detach()), ledger["tp_fp32"], what="output")
    found = {name: one.grad for name, one in layer.named_parameters()}
    expected = {name: one.grad for name, one in whole.named_parameters()}
    assert_close(found, expected, ledger["tp_fp32"], what="gradient")
