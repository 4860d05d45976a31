"""The decoder with experts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hyper_parallel_tests.harness.judging.parity import assert_close, assert_differs
from hyper_parallel_tests.harness.judging.tolerances import ledger
from hyper_parallel_tests.models.decoder import decoder_batch, rotate
from hyper_parallel_tests.models.moe import (
    PLAN,
    QWEN,
    MoeLayer,
    MoeShape,
    balancing_loss,
    moe_decoder,
    moe_loss,
)
from hyper_parallel_tests.models.seeding import build

ROW = ledger["fsdp_1d_fp32"]
SHARED = MoeShape(shared_ffn=24, dense_layers=1)
SHAPES = {"plain": MoeShape(), "shared": SHARED, "top_1": MoeShape(top_k=1), "qwen": QWEN}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def tokens(shape: MoeShape) -> torch.Tensor:
    return torch.randn(3, 5, shape.hidden, generator=torch.Generator().manual_seed(1))


def test_the_plans_decoder_has_the_plans_sizes():
    """Two dense layers and two of 4 experts, top-2, twice the hidden width inside; hidden 256, seq 64 (S1 L3-03)."""
    assert (PLAN.layers, PLAN.dense_layers, PLAN.experts, PLAN.top_k) == (4, 2, 4, 2)
    assert (PLAN.hidden, PLAN.seq, PLAN.expert_ffn) == (256, 64, 2 * PLAN.hidden)


def test_qwen_is_scaled_down():
    """Qwen3-30B-A3B's proportions: heads of 2 hidden together, fewer for keys, experts of 3/8 hidden, 4 of 16."""
    assert (QWEN.experts, QWEN.top_k, QWEN.qk_norm, QWEN.normed_weights, QWEN.tied) == (16, 4, True, True, False)
    assert QWEN.heads * QWEN.head_width == 2 * QWEN.hidden
    assert QWEN.kv_heads < QWEN.heads
    assert QWEN.expert_ffn * 8 == QWEN.hidden * 3


@each_shape
def test_logits_have_a_value_per_token_and_word(shape):
    """(batch, seq) tokens give (batch, seq, vocab) logits."""
    assert moe_decoder(shape)(decoder_batch(0, rows=3, shape=shape).inputs).shape == (3, shape.seq, shape.vocab)


def test_the_first_blocks_are_dense():
    """The blocks before `dense_layers` have a feed-forward, the others experts."""
    model = moe_decoder(SHARED)
    assert [isinstance(block.ffn, MoeLayer) for block in model.blocks] == [False, True]
    assert len(model.expert_layers()) == 1


@each_shape
def test_experts_are_the_formula(shape):
    """Every expert on every token, weighed by its score where it is among the best, and the shared one on top."""
    layer, hidden = build(lambda: MoeLayer(shape), 0), tokens(shape)
    scores = layer.router.gate(hidden).softmax(-1)
    bound = scores.sort(-1, descending=True).values[..., shape.top_k - 1, None]
    weights = scores * (scores >= bound)
    if shape.normed_weights:
        weights = weights / weights.sum(-1, keepdim=True)
    expected = layer.shared(hidden) if layer.shared is not None else torch.zeros_like(hidden)
    for expert in range(shape.experts):
        gate, up, down = (one[expert].T for one in (layer.experts.gate, layer.experts.up, layer.experts.down))
        expected = expected + weights[..., expert, None] * ((F.silu(hidden @ gate) * (hidden @ up)) @ down)
    assert_close(layer(hidden), expected, ROW)


def test_equal_scores_go_to_the_first():
    """Where all scores are equal a token sees the first experts."""
    layer = build(lambda: MoeLayer(MoeShape()), 0)
    with torch.no_grad():
        layer.router.gate.weight.zero_()
    layer(tokens(MoeShape()))
    assert layer.routing.experts.tolist() == [[0, 1]] * 15


def test_heads_are_normed_before_they_are_turned():
    """Queries and keys are the RMSNorm of each head with a weight of its own, then turned."""
    attention, hidden = moe_decoder(QWEN).blocks[0].attention, tokens(QWEN)
    positions, width = torch.arange(5), QWEN.head_width
    seen = {}
    attention.core.register_forward_pre_hook(lambda _, args: seen.update(zip("qkv", args, strict=True)))
    attention(hidden, positions)
    for what, norm in (("q", attention.q_norm), ("k", attention.k_norm)):
        heads = getattr(attention, what)(hidden).unflatten(-1, (-1, width)).transpose(1, 2)
        normed = heads * (heads.square().mean(-1, keepdim=True) + norm.eps).rsqrt() * norm.weight
        assert_close(seen[what], rotate(normed, positions), ROW)
        assert_differs(seen[what], rotate(heads, positions), ROW)


def test_balancing_loss_is_one_where_all_is_even():
    """It is 1 with even scores and choices, and the number of experts where one has everything."""
    even = torch.full((4, 4), 0.25)
    assert_close(balancing_loss(even, torch.arange(4)[:, None]), torch.tensor(1.0), ROW)
    one = torch.zeros(4, 4).index_fill(1, torch.tensor([2]), 1.0)
    assert_close(balancing_loss(one, torch.full((4, 1), 2)), torch.tensor(4.0), ROW)


def test_loss_has_the_balancing_loss_of_each_layer():
    """The difference between two coefficients is that of the balancing losses, and a share is of the entropy alone."""
    model, batch = moe_decoder(), decoder_batch(0, shape=MoeShape())
    without, once = (moe_loss(model, batch, coefficient=one) for one in (0.0, 1.0))
    layers = [layer.routing for layer in model.expert_layers()]
    assert len(layers) == 2
    balances = sum(balancing_loss(one.scores, one.experts) for one in layers)
    assert_close(once - without, balances, ROW)
    assert_close(moe_loss(model, batch, coefficient=1.0, share=0.5), without / 2 + balances, ROW)


@pytest.mark.parametrize("shape", [*SHAPES.values(), PLAN], ids=[*SHAPES, "plan"])
def test_every_parameter_has_a_gradient_that_the_ledger_can_judge(shape):
    """No gradient is so small that a tolerance of 1e-5 would pass zeros."""
    model = moe_decoder(shape)
    moe_loss(model, decoder_batch(0, rows=2, shape=shape)).backward()
    for name, param in model.named_parameters():
        assert param.grad.abs().max() > 100 * ROW.tensor, name


@pytest.mark.parametrize("top_k", [0, 5])
def test_sizes_that_do_not_fit_are_an_error(top_k):
    """A token sees one expert at least, and not more than there are."""
    with pytest.raises(ValueError, match=f"top_k={top_k} .* experts=4"):
        MoeShape(top_k=top_k)


@pytest.mark.parametrize("dense_layers", [-1, 3])
def test_more_dense_layers_than_layers_are_an_error(dense_layers):
    """Neither fewer than none nor more than there are layers can be dense."""
    with pytest.raises(ValueError, match=f"dense_layers={dense_layers} .* layers=2"):
        MoeShape(layers=2, dense_layers=dense_layers)
