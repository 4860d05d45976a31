"""Cross entropy in chunks."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.harness.judging.parity import assert_close
from hyper_parallel_tests.harness.judging.tolerances import ledger
from hyper_parallel_tests.models.chunked_cross_entropy import (
    CHUNK,
    PLAN,
    SMALL,
    chunked_decoder,
    chunked_loss,
)
from hyper_parallel_tests.models.decoder import decoder, decoder_batch, decoder_loss

ROW = ledger["fsdp_1d_fp32"]


def test_the_plans_loss_has_the_plans_sizes():
    """2 layers, 32768 words, chunks of 512 tokens (S1 L3-05)."""
    assert (PLAN.layers, PLAN.vocab, CHUNK) == (2, 32768, 512)


@pytest.mark.parametrize("chunk", [1, 24, 64, 100])
def test_the_total_is_the_loss_without_chunks(chunk):
    """Loss and gradients are those of all logits at once, whether chunks divide the 64 tokens or not."""
    chunked, whole, batch = chunked_decoder(chunk=chunk), decoder(SMALL), decoder_batch(0)
    loss, expected = chunked_loss(chunked, batch), decoder_loss(whole, batch)
    assert_close(loss, expected, ROW, what="loss")
    loss.backward()
    expected.backward()
    grads = {name: param.grad for name, param in whole.named_parameters()}
    assert_close({name: param.grad for name, param in chunked.named_parameters()}, grads, ROW, what="gradients")


def test_each_chunk_has_its_share():
    """The shares are of 24, 24 and 16 tokens in order, and their sum is the total."""
    model, batch = chunked_decoder(), decoder_batch(0)
    losses = model(batch.inputs, batch.targets)
    assert losses.chunks.shape == (3,)
    assert_close(losses.chunks.sum(), losses.total, ledger["chunked_loss_sum_fp32"])
    logits = decoder(SMALL)(batch.inputs).flatten(0, 1)
    each = torch.nn.functional.cross_entropy(logits, batch.targets.flatten(), reduction="none")
    assert_close(losses.chunks, torch.stack([part.sum() / 64 for part in each.split(24)]), ROW)


def test_only_a_chunks_logits_exist_at_once():
    """The output layer never sees more than a chunk's tokens."""
    model, batch, rows = chunked_decoder(), decoder_batch(0), []
    model.output.register_forward_hook(lambda _module, inputs, _output: rows.append(len(inputs[0])))
    model(batch.inputs, batch.targets)
    assert rows == [24, 24, 16]


def test_every_parameter_has_a_gradient_that_the_ledger_can_judge():
    """No gradient is so small that a tolerance of 1e-5 would pass zeros, also over the plan's vocabulary."""
    model = chunked_decoder(PLAN, CHUNK)
    chunked_loss(model, decoder_batch(0, rows=2, shape=PLAN)).backward()
    for name, param in model.named_parameters():
        assert param.grad.abs().max() > 100 * ROW.tensor, name


def test_no_chunk_is_an_error():
    """A chunk has at least one token."""
    with pytest.raises(ValueError, match="chunk=0"):
        chunked_decoder(chunk=0)
