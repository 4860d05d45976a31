"""Training of divided networks against a single card."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hyper_parallel_tests.domains.tensor_parallel.networks import (
    EQUAL,
    GROUPED,
    STEPS,
    TIED,
    UNEVEN_VOCAB,
    attention,
    attention_plan,
    decoder_batches,
    decoder_loss,
    divided_decoder,
    divided_mlp,
    feed_forward,
    feed_forward_plan,
    hidden_batches,
    logits,
    mesh_of,
    sgd,
    squared_error,
    whole_decoder,
)
from hyper_parallel_tests.harness import World, assert_close, assert_parity, contract, train, train_baseline
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.decoder import DecoderShape
from hyper_parallel_tests.models.mlp import mlp, mlp_loss
from hyper_parallel_tests.models.seeding import Batch, build, generator

HEADS = {"equal": EQUAL, "grouped": GROUPED}
each_heads = pytest.mark.parametrize("shape", HEADS.values(), ids=HEADS)

DECODERS = HEADS | {"tied": TIED, "uneven_vocabulary": UNEVEN_VOCAB}
each_decoder = pytest.mark.parametrize("shape", DECODERS.values(), ids=DECODERS)


def attention_loss(model: nn.Module, batch: Batch, positions: torch.Tensor) -> torch.Tensor:
    return squared_error(model, batch, positions)


def on_one_card(model: nn.Module, batches: list[Batch], loss: Any) -> Track:
    return train_baseline(model, batches, loss, optimizer=sgd)


@contract("TP-2-01")
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_mlp(engine, world, ledger, bias):
    """A columnwise and a rowwise layer train as on one card; the rowwise bias counts once."""
    batches = hidden_batches(world, 16)
    candidate = train(divided_mlp(engine, world, bias=bias), batches, mlp_loss, optimizer=sgd)
    baseline = on_one_card(mlp(16, 2, bias=bias).to(world.device), batches, mlp_loss)
    assert_parity(candidate, baseline, ledger["tp_fp32"])


@contract("TP-2-01")
def test_mlp_of_uneven_width(engine, world, ledger):
    """So do layers whose inner width ranks do not divide, where it stays a distributed tensor between them."""
    batches = hidden_batches(world, 9)
    model = mlp(9, 2).to(world.device)
    plan = {"layers.0": engine.ColwiseParallel(use_local_output=False), "layers.1": engine.RowwiseParallel()}
    engine.parallelize_module(model, mesh_of(world), plan)
    baseline = on_one_card(mlp(9, 2).to(world.device), batches, mlp_loss)
    assert_parity(train(model, batches, mlp_loss, optimizer=sgd), baseline, ledger["tp_fp32"])


@contract("TP-2-01")
@each_heads
def test_attention(engine, world, ledger, shape):
    """Heads divided over ranks, each with its group's keys, train as on one card."""
    batches = hidden_batches(world, shape.hidden)
    positions = torch.arange(shape.seq, device=world.device)
    loss = partial(attention_loss, positions=positions)
    model = engine.parallelize_module(attention(world, shape), mesh_of(world), attention_plan(engine))
    baseline = on_one_card(attention(world, shape), batches, loss)
    assert_parity(train(model, batches, loss, optimizer=sgd), baseline, ledger["tp_fp32"])


@contract("TP-2-01")
def test_feed_forward(engine, world, ledger):
    """So does a gated feed-forward, with two columnwise layers beside each other."""
    batches = hidden_batches(world, GROUPED.hidden)
    model = engine.parallelize_module(feed_forward(world, GROUPED), mesh_of(world), feed_forward_plan(engine))
    baseline = on_one_card(feed_forward(world, GROUPED), batches, squared_error)
    assert_parity(train(model, batches, squared_error, optimizer=sgd), baseline, ledger["tp_fp32"])


# Of five rows two ranks have three and two, and four have two, two, one and none.
VOCABULARIES = {"even": 16, "uneven": 11, "five": 5, "few": 3, "one": 1}


def embedding(world: World, vocab: int, padding_idx: int | None = None) -> nn.Embedding:
    return build(lambda: nn.Embedding(vocab, 8, padding_idx=padding_idx), 0).to(world.device)


def embedding_batches(world: World, vocab: int) -> list[Batch]:
    """Tokens, some of them more than once, and what their vectors are to be."""
    sources = [generator(seed, "embedding") for seed in range(STEPS)]
    tokens = [torch.randint(vocab, (2, 12), generator=one) for one in sources]
    return [
        Batch(one, torch.randn(2, 12, 8, generator=source)).to(world.device)
        for one, source in zip(tokens, sources, strict=True)
    ]


@contract("TP-2-01")
@pytest.mark.parametrize("style", ["rows", "columns"])
@pytest.mark.parametrize("vocab", VOCABULARIES.values(), ids=VOCABULARIES)
def test_embedding(engine, world, ledger, style, vocab):
    """A table divided by rows or by columns trains as a whole one, though ranks have few rows or none."""
    whole = engine.Replicate()
    if style == "rows":
        chosen = engine.RowwiseParallel(input_layouts=whole)
    else:
        chosen = engine.ColwiseParallel(output_layouts=whole)
    batches = embedding_batches(world, vocab)
    model = engine.parallelize_module(embedding(world, vocab), mesh_of(world), chosen)
    baseline = on_one_card(embedding(world, vocab), batches, squared_error)
    assert_parity(train(model, batches, squared_error, optimizer=sgd), baseline, ledger["tp_fp32"])


@contract("TP-2-01")
@pytest.mark.parametrize("padding_idx", [0, 7, 15])
def test_padding_row_is_not_trained(engine, world, ledger, padding_idx):
    """The row of the padding token has no gradient, on whichever rank it lies, and the others have theirs."""
    batches = embedding_batches(world, 16)
    batches[0].inputs[:, :4] = padding_idx
    model = engine.parallelize_module(
        embedding(world, 16, padding_idx), mesh_of(world), engine.RowwiseParallel(input_layouts=engine.Replicate())
    )
    baseline = on_one_card(embedding(world, 16, padding_idx), batches, squared_error)
    assert_parity(train(model, batches, squared_error, optimizer=sgd), baseline, ledger["tp_fp32"])


@contract("TP-2-01")
@each_decoder
def test_decoder(engine, world, ledger, shape: DecoderShape):
    """A decoder divided from the embedding to the logits trains as on one card."""
    batches = decoder_batches(world, shape)
    candidate = train(divided_decoder(engine, world, shape), batches, decoder_loss, optimizer=sgd)
    baseline = on_one_card(whole_decoder(world, shape), batches, decoder_loss)
    assert_parity(candidate, baseline, ledger["tp_fp32"])


@contract("TP-2-01")
@each_decoder
def test_logits(engine, world, ledger, shape):
    """Its logits are those of one card for each token."""
    tokens = decoder_batches(world, shape)[0].inputs
    found = logits(divided_decoder(engine, world, shape), tokens)
    assert_close(found.detach(), logits(whole_decoder(world, shape), tokens).detach(), ledger["tp_fp32"], what="logits")


@contract("TP-2-01")
def test_adam(engine, world, ledger):
    """So does a decoder under an optimizer that is not linear in the gradient."""
    adam = partial(torch.optim.Adam, lr=1e-3, eps=1e-3, foreach=False)
    batches = decoder_batches(world, GROUPED)
    candidate = train(divided_decoder(engine, world, GROUPED), batches, decoder_loss, optimizer=adam)
    baseline = train_baseline(whole_decoder(world, GROUPED), batches, decoder_loss, optimizer=adam)
    assert_parity(candidate, baseline, ledger["tp_fp32"])


@contract("TP-2-01")
def test_layer_of_three_dimensions_and_of_two(engine, world, ledger):
    """The output of a columnwise layer is the whole one's columns, whatever stands before the features."""
    whole = build(lambda: nn.Linear(16, 8), 0).to(world.device)
    layer = build(lambda: nn.Linear(16, 8), 0).to(world.device)
    engine.parallelize_module(layer, mesh_of(world), engine.ColwiseParallel())
    inputs = hidden_batches(world, 16)[0].inputs
    for given in (inputs, inputs[0], F.pad(inputs, (0, 0, 1, 0))):
        expected = whole(given).chunk(world.size, -1)[world.rank]
        assert_close(layer(given).detach(), expected.detach(), ledger["tp_fp32"], what="output")
