"""A decoder that is its own loss: cross entropy in chunks, so that the logits of all tokens never exist at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.models.decoder import Decoder, DecoderShape
from hyper_parallel_tests.models.seeding import Batch, build

__all__ = ["CHUNK", "PLAN", "SMALL", "ChunkedDecoder", "Losses", "chunked_decoder", "chunked_loss"]

CHUNK = 512
"""Tokens of a chunk in the FSDP plan, L3-05."""

PLAN = DecoderShape(vocab=32768, hidden=256, layers=2, heads=8, kv_heads=8, ffn=704, seq=128, tied=False)
"""The decoder of the FSDP plan, L3-05: 2 layers and an output layer of 32768 words."""

SMALL = DecoderShape(tied=False)
"""The sizes unless others are asked for: those of `decoder`, with an output layer of its own."""


class Losses(NamedTuple):
    """`total` is the mean over all tokens; `chunks` (chunks,) are each chunk's share of it, without gradient."""

    total: Tensor
    chunks: Tensor


class ChunkedDecoder(Decoder):
    """A `Decoder` that takes tokens and targets, (batch, seq) each, and returns `Losses`.

    The output layer runs once a chunk of `chunk` tokens, the last one shorter, and its logits of earlier chunks are
    gone by then but for what autograd keeps.
    """

    def __init__(self, shape: DecoderShape, chunk: int) -> None:
        super().__init__(shape)
        self.chunk = chunk

    def forward(self, tokens: Tensor, targets: Tensor) -> Losses:
        states, words = self.states(tokens).flatten(0, 1), targets.flatten()
        total, shares = states.new_zeros(()), []
        for part, wanted in zip(states.split(self.chunk), words.split(self.chunk), strict=True):
            share = F.cross_entropy(self.output(part), wanted, reduction="sum") / len(words)
            total = total + share
            shares.append(share.detach())
        return Losses(total, torch.stack(shares))


def chunked_decoder(shape: DecoderShape = SMALL, chunk: int = 24, *, seed: int = 0) -> ChunkedDecoder:
    """A `ChunkedDecoder` in fp32 on the CPU with the weights of `seed`, as `decoder` has them."""
    if chunk < 1:
        raise ValueError(f"a chunk has at least one token, got chunk={chunk}")
    return build(lambda: ChunkedDecoder(shape, chunk), seed)


def chunked_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The total of a batch that `decoder_batch` makes: the mean over equal parts is the whole's."""
    return model(batch.inputs, batch.targets).total
