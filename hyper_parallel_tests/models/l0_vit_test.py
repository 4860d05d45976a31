"""The vision transformer."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.harness.judging.parity import assert_close, assert_differs
from hyper_parallel_tests.harness.judging.tolerances import ledger
from hyper_parallel_tests.models.vit import PLAN, RATE, VitShape, vit, vit_batch, vit_loss

ROW = ledger["fsdp_1d_fp32"]


def test_the_plans_transformer_has_the_plans_sizes():
    """6 encoder blocks, hidden 256, images of 224 (S1 L3-04)."""
    assert (PLAN.layers, PLAN.hidden, PLAN.image) == (6, 256, 224)
    assert vit_batch(0, rows=1, shape=PLAN).inputs.shape == (1, 3, 224, 224)
    assert PLAN.patches == 14 * 14


def test_logits_have_a_value_per_class():
    """Images give (batch, classes) logits, features a row for CLS and for each patch."""
    model, images = vit(), vit_batch(0, rows=3).inputs
    assert model(images).shape == (3, 10)
    assert model.encoder(images).shape == (3, 1 + 4, 32)


def test_patches_are_a_convolution():
    """The embedding is a convolution whose stride is its kernel, patches row by row."""
    embedding, images = vit().encoder.patches, vit_batch(0, rows=2).inputs
    kernel = embedding.projection.weight.view(32, 3, 4, 4)
    expected = torch.nn.functional.conv2d(images, kernel, embedding.projection.bias, stride=4)
    assert_close(embedding(images), expected.flatten(2).transpose(1, 2), ROW)


def test_block_is_the_formula():
    """Pre-norm attention of all to all, then linear, GELU, linear, each added to the stream."""
    block = vit().encoder.blocks[0]
    hidden = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    attention, normed = block.attention, block.attention_norm(hidden)
    heads = []
    for head in range(4):
        q, k, v = (project(normed)[..., head * 8 : head * 8 + 8] for project in (attention.q, attention.k, attention.v))
        heads.append((q @ k.transpose(1, 2) / 8**0.5).softmax(-1) @ v)
    between = hidden + attention.o(torch.cat(heads, dim=-1))
    inner = block.mlp.up(block.mlp_norm(between))
    expected = between + block.mlp.down(inner * (1 + torch.erf(inner / 2**0.5)) / 2)
    assert_close(block(hidden), expected, ROW)


def test_the_class_comes_from_the_cls_token_alone():
    """The head reads token 0, which sees every patch."""
    model, images = vit(), vit_batch(0, rows=1).inputs
    assert_close(model(images), model.head(model.encoder(images)[:, 0]), ledger["exact"])
    for corner in (0, -1):
        other = images.clone()
        other[0, 0, corner, corner] += 1
        assert_differs(model(other), model(images), ROW)


def test_loss_of_equal_parts_averages_to_the_whole():
    """The mean over ranks is the batch's."""
    model, batch = vit(), vit_batch(0)
    parts = torch.stack([vit_loss(model, batch.part(rank, 2)) for rank in range(2)])
    assert_close(parts.mean(), vit_loss(model, batch), ROW)


@pytest.mark.parametrize("shape", [VitShape(), PLAN], ids=["small", "plan"])
def test_every_parameter_has_a_gradient_that_the_ledger_can_judge(shape):
    """No gradient is so small that a tolerance of 1e-5 would pass zeros."""
    model = vit(shape)
    vit_loss(model, vit_batch(0, rows=1, shape=shape)).backward()
    for name, param in model.named_parameters():
        assert param.grad.abs().max() > 100 * ROW.tensor, name


def test_every_gradient_of_the_second_step_can_be_judged_too():
    """At the learning rate of the FSDP plan's cases an update lowers the loss and leaves no gradient too small."""
    model = vit(PLAN)
    optimizer, first = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9), vit_batch(0, rows=2, shape=PLAN)
    before = vit_loss(model, first)
    before.backward()
    optimizer.step()
    with torch.no_grad():
        assert vit_loss(model, first) < before
    optimizer.zero_grad()
    vit_loss(model, vit_batch(1, rows=2, shape=PLAN)).backward()
    for name, param in model.named_parameters():
        assert param.grad.abs().max() > 100 * ROW.tensor, name


@pytest.mark.parametrize(("sizes", "said"), [({"image": 10}, "image=10"), ({"hidden": 30}, "hidden=30")])
def test_sizes_that_do_not_fit_are_an_error(sizes, said):
    """Patches divide the image evenly, and heads the width."""
    with pytest.raises(ValueError, match=said):
        VitShape(**sizes)
