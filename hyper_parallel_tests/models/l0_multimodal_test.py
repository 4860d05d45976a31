"""The stack of vision encoder, projection and language decoder."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.harness.judging.parity import assert_close, assert_differs
from hyper_parallel_tests.harness.judging.tolerances import ledger
from hyper_parallel_tests.models.multimodal import (
    PLAN,
    MultimodalShape,
    multimodal,
    multimodal_batch,
    multimodal_loss,
)

ROW = ledger["fsdp_1d_fp32"]


def test_the_plans_stack_has_the_plans_sizes():
    """4 vision blocks of hidden 128, 2 projection layers, 2 decoder layers of hidden 256 (S1 L3-06)."""
    assert (PLAN.vision.layers, PLAN.vision.hidden) == (4, 128)
    assert (PLAN.language.layers, PLAN.language.hidden) == (2, 256)
    projection = dict(multimodal(PLAN).projection.named_parameters())
    assert {name: tuple(one.shape) for name, one in projection.items() if one.ndim > 1} == {
        "up.weight": (256, 128),
        "down.weight": (256, 256),
    }


def test_logits_have_a_value_per_token_and_word():
    """The image gets no logits, the text's tokens do."""
    shape, batch = MultimodalShape(), multimodal_batch(0, rows=3)
    logits = multimodal()(batch.images, batch.tokens)
    assert logits.shape == (3, shape.language.seq, shape.language.vocab)


def test_the_text_follows_the_image():
    """The decoder reads projected features, then tokens; every token sees the image, and no later token."""
    model, batch = multimodal(), multimodal_batch(0)
    logits = model(batch.images, batch.tokens)
    features = model.projection(model.vision(batch.images))
    assert_close(logits, model.language(batch.tokens, prefix=features), ledger["exact"])
    assert_differs(model(batch.images + 1, batch.tokens)[:, 0], logits[:, 0], ROW)
    other = batch.tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % 64
    assert_close(model(batch.images, other)[:, :-1], logits[:, :-1], ledger["exact"])


def test_projection_is_the_formula():
    """Linear, GELU, linear, in this order."""
    projection, features = multimodal().projection, torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    inner = projection.up(features)
    assert_close(projection(features), projection.down(inner * (1 + torch.erf(inner / 2**0.5)) / 2), ROW)


def test_loss_of_equal_parts_averages_to_the_whole():
    """The mean over ranks is the batch's."""
    model, batch = multimodal(), multimodal_batch(0)
    parts = torch.stack([multimodal_loss(model, batch.part(rank, 2)) for rank in range(2)])
    assert_close(parts.mean(), multimodal_loss(model, batch), ROW)


def test_rows_that_do_not_divide_are_refused():
    """Unequal parts would make the mean over ranks another than the batch's."""
    with pytest.raises(ValueError, match="4 rows do not divide among 3 ranks"):
        multimodal_batch(0).part(0, 3)


@pytest.mark.parametrize("shape", [MultimodalShape(), PLAN], ids=["small", "plan"])
def test_every_parameter_has_a_gradient_that_the_ledger_can_judge(shape):
    """The gradient reaches the first layer of the vision encoder, and none is so small that zeros would pass."""
    model = multimodal(shape)
    multimodal_loss(model, multimodal_batch(0, rows=1, shape=shape)).backward()
    for name, param in model.named_parameters():
        assert param.grad.abs().max() > 100 * ROW.tensor, name
