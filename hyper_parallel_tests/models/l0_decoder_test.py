"""The transformer decoder."""

from __future__ import annotations

import math

import pytest
import torch

from hyper_parallel_tests.harness.judging.parity import assert_close, assert_differs
from hyper_parallel_tests.harness.judging.tolerances import ledger
from hyper_parallel_tests.models.decoder import (
    PLAN,
    DecoderShape,
    decoder,
    decoder_batch,
    decoder_loss,
    rotate,
)

ROW = ledger["fsdp_1d_fp32"]
MHA = DecoderShape(kv_heads=4)
GQA = DecoderShape(kv_heads=2)


def test_the_plans_decoder_has_the_plans_sizes():
    """4 layers, vocab 1024, hidden 256, seq 128, multi-head attention, tied output (S1 L3-01)."""
    assert (PLAN.layers, PLAN.vocab, PLAN.hidden, PLAN.seq, PLAN.tied) == (4, 1024, 256, 128, True)
    assert PLAN.heads == PLAN.kv_heads
    assert decoder_batch(0, rows=1, shape=PLAN).inputs.shape == (1, 128)


@pytest.mark.parametrize("shape", [MHA, GQA], ids=["mha", "gqa"])
def test_logits_have_a_value_per_token_and_word(shape):
    """(batch, seq) tokens give (batch, seq, vocab) logits."""
    tokens = decoder_batch(0, rows=3, shape=shape).inputs
    assert decoder(shape)(tokens).shape == (3, shape.seq, shape.vocab)


def test_tied_output_is_one_parameter():
    """The output layer's weight is the embedding's, once among the parameters, and gets both gradients."""
    model = decoder()
    assert model.output.weight is model.embedding.weight
    assert "output.weight" not in dict(model.named_parameters())
    untied = decoder(DecoderShape(tied=False))
    with torch.no_grad():
        untied.output.weight.copy_(untied.embedding.weight)
    for one in (model, untied):
        decoder_loss(one, decoder_batch(0)).backward()
    assert_close(model.embedding.weight.grad, untied.embedding.weight.grad + untied.output.weight.grad, ROW)


@pytest.mark.parametrize("shape", [MHA, GQA], ids=["mha", "gqa"])
def test_a_token_does_not_see_what_follows(shape):
    """Another last token changes the last logits and no earlier ones."""
    model, tokens = decoder(shape), decoder_batch(0, shape=shape).inputs
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % shape.vocab
    assert_close(model(other)[:, :-1], model(tokens)[:, :-1], ledger["exact"])
    assert_differs(model(other)[:, -1], model(tokens)[:, -1], ROW)


@pytest.mark.parametrize("shape", [MHA, GQA], ids=["mha", "gqa"])
def test_attention_is_the_formula(shape):
    """Softmax of scaled scores over the past, some query heads to a key head, positions turned in."""
    attention, positions = decoder(shape).blocks[0].attention, torch.arange(5)
    hidden = torch.randn(2, 5, shape.hidden, generator=torch.Generator().manual_seed(1))
    q, k, v = attention.q(hidden), attention.k(hidden), attention.v(hidden)
    width, group = shape.head_width, shape.heads // shape.kv_heads
    heads = []
    for head in range(shape.heads):
        mine, theirs = (slice(one * width, (one + 1) * width) for one in (head, head // group))
        scores = rotate(q[..., mine], positions) @ rotate(k[..., theirs], positions).transpose(1, 2)
        scores = scores / math.sqrt(width) + torch.full((5, 5), -torch.inf).triu(1)
        heads.append(scores.softmax(-1) @ v[..., theirs])
    assert_close(attention(hidden, positions), attention.o(torch.cat(heads, dim=-1)), ROW)


def test_rotation_keeps_length_and_knows_distance_only():
    """Turned vectors keep their length, and the product of two depends on their distance."""
    q, k = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(1))
    at = torch.tensor
    assert_close(rotate(q, at([7])).norm(), q.norm(), ROW)
    near, far = (rotate(q, at([p + 2])) @ rotate(k, at([p])).T for p in (3, 11))
    assert_close(near, far, ROW)
    assert_close(rotate(q, at([0])), q, ROW)
    assert_differs(rotate(q, at([1])), q, ROW)


def test_positions_may_be_given():
    """A rank that holds a later part of the row says where: positions count, from zero by default."""
    model, tokens = decoder(), decoder_batch(0).inputs
    positions = torch.arange(tokens.shape[1])
    assert_close(model(tokens, positions), model(tokens), ledger["exact"])
    spread = 2 * positions
    assert_differs(model(tokens, spread), model(tokens), ROW)


def test_a_prefix_stands_before_the_tokens():
    """Embedded tokens given as a prefix are as good as the tokens themselves, and get no logits."""
    model, tokens = decoder(), decoder_batch(0).inputs
    whole = model(tokens)
    split = model(tokens[:, 6:], prefix=model.embedding(tokens[:, :6]))
    assert split.shape == whole[:, 6:].shape
    assert_close(split, whole[:, 6:], ROW)


def test_targets_are_the_tokens_that_follow():
    """Each target is the next input."""
    batch = decoder_batch(0)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert batch.inputs.dtype == torch.int64


def test_loss_of_equal_parts_averages_to_the_whole():
    """The mean over ranks is the batch's."""
    model, batch = decoder(), decoder_batch(0)
    parts = torch.stack([decoder_loss(model, batch.part(rank, 2)) for rank in range(2)])
    assert_close(parts.mean(), decoder_loss(model, batch), ROW)


@pytest.mark.parametrize("shape", [DecoderShape(), MHA, PLAN], ids=["gqa", "mha", "plan"])
def test_every_parameter_has_a_gradient_that_the_ledger_can_judge(shape):
    """No gradient is so small that a tolerance of 1e-5 would pass zeros."""
    model = decoder(shape)
    decoder_loss(model, decoder_batch(0, rows=1, shape=shape)).backward()
    for name, param in model.named_parameters():
        assert param.grad.abs().max() > 100 * ROW.tensor, name


@pytest.mark.parametrize(
    ("sizes", "said"),
    [({"hidden": 30}, "hidden=30"), ({"hidden": 12}, "hidden=12"), ({"kv_heads": 3}, "kv_heads=3")],
)
def test_sizes_that_do_not_fit_are_an_error(sizes, said):
    """Heads divide the width evenly, and key heads the query heads."""
    with pytest.raises(ValueError, match=said):
        DecoderShape(**sizes)
