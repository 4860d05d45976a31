"""A transformer decoder as language models have it now: RMSNorm, RoPE, MHA or GQA, SwiGLU, tied output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.models.seeding import Batch, build, generator

__all__ = ["PLAN", "Decoder", "DecoderShape", "decoder", "decoder_batch", "decoder_loss"]


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a decoder.

    Attributes:
        vocab: number of tokens.
        hidden: width of the residual stream.
        layers: number of blocks.
        heads: query heads; hidden / heads is the head width, which must be even for RoPE.
        kv_heads: key and value heads, a divisor of heads: equal to it is MHA, fewer is GQA.
        ffn: width inside the feed-forward.
        seq: tokens in a row of a batch.
        tied: whether the output layer shares the embedding's weight.
    """

    vocab: int = 64
    hidden: int = 32
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 48
    seq: int = 16
    tied: bool = True

    def __post_init__(self) -> None:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(f"hidden={self.hidden} must be an even multiple of heads={self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}")

    @property
    def head_width(self) -> int:
        return self.hidden // self.heads


PLAN = DecoderShape(vocab=1024, hidden=256, layers=4, heads=8, kv_heads=8, ffn=704, seq=128)
"""The decoder of the FSDP plan, L3-01 and L3-02: 4 layers, vocab 1024, hidden 256, seq 128, MHA."""


class Decoder(nn.Module):
    """Tokens (batch, seq) -> logits (batch, seq, vocab).

    Modules: `embedding`, `blocks.<i>` with `attention_norm`, `attention` (`q`, `k`, `v`, `core`, `o`), `ffn_norm` and
    `ffn` (`gate`, `up`, `down`), then `norm` and `output`.
    """

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.output = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor, positions: Tensor | None = None, prefix: Tensor | None = None) -> Tensor:
        """Logits of the tokens.

        Args:
            tokens: (batch, seq), int64.
            positions: places in the row, 0, 1, ... unless given; (seq,), or (prefix + seq,) with a prefix.
            prefix: (batch, prefix, hidden) that stands before the tokens, such as an image's; it gets no logits.
        """
        return self.output(self.states(tokens, positions, prefix))

    def states(self, tokens: Tensor, positions: Tensor | None = None, prefix: Tensor | None = None) -> Tensor:
        """What the output layer reads, (batch, seq, hidden); arguments as in `forward`."""
        hidden = self.embedding(tokens)
        if prefix is not None:
            hidden = torch.cat((prefix, hidden), dim=1)
        if positions is None:
            positions = torch.arange(hidden.shape[1], device=tokens.device)
        for block in self.blocks:
            hidden = block(hidden, positions)
        return self.norm(hidden[:, -tokens.shape[1] :])


class Block(nn.Module):
    """Attention, then feed-forward, each of the normed input and added; (batch, seq, hidden) in and out."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.ffn = FeedForward(shape)

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), positions)
        return hidden + self.ffn(self.ffn_norm(hidden))


class Attention(nn.Module):
    """Causal self-attention with rotary positions; (batch, seq, hidden) in and out.

    The number of heads is taken from the projections' outputs, so that a rank may hold some of the heads
    only.
    """

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.head_width = shape.head_width
        self.q = nn.Linear(shape.hidden, shape.heads * shape.head_width, bias=False)
        self.k = nn.Linear(shape.hidden, shape.kv_heads * shape.head_width, bias=False)
        self.v = nn.Linear(shape.hidden, shape.kv_heads * shape.head_width, bias=False)
        self.core = CausalAttention()
        self.o = nn.Linear(shape.heads * shape.head_width, shape.hidden, bias=False)

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        q, k, v = (
            project(hidden).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for project in (self.q, self.k, self.v)
        )
        mixed = self.core(rotate(q, positions), rotate(k, positions), v)
        return self.o(mixed.transpose(1, 2).flatten(2))


class CausalAttention(nn.Module):
    """q (batch, heads, seq, width), k and v (batch, kv_heads, seq, width) -> (batch, heads, seq, width)."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class FeedForward(nn.Module):
    """SwiGLU; (batch, seq, hidden) in and out."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(hidden)) * self.up(hidden))


def rotate(heads: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions (RoPE, base 10000): turns pairs (i, i + width/2) of (..., seq, width) by place."""
    half = heads.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=heads.device, dtype=torch.float32) / half)
    angles = positions.to(torch.float32)[:, None] * rates
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def decoder(shape: DecoderShape = DecoderShape(), *, seed: int = 0) -> Decoder:
    """A `Decoder` in fp32 on the CPU with the weights of `seed`."""
    return build(lambda: Decoder(shape), seed)


def decoder_batch(seed: int, rows: int = 4, shape: DecoderShape = DecoderShape()) -> Batch:
    """Random tokens and those that follow them, int64, each (rows, shape.seq); the same for the same seed."""
    tokens = torch.randint(shape.vocab, (rows, shape.seq + 1), generator=generator(seed, "decoder_batch"))
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def decoder_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of the next token, averaged over all tokens: the mean over equal parts is the whole's."""
    return F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
