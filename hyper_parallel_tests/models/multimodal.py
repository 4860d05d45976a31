"""A vision encoder, a projection and a language decoder in a stack: text that follows an image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.models.decoder import Decoder, DecoderShape
from hyper_parallel_tests.models.seeding import build, generator
from hyper_parallel_tests.models.vit import Encoder, VitShape

__all__ = [
    "PLAN",
    "Multimodal",
    "MultimodalBatch",
    "MultimodalShape",
    "multimodal",
    "multimodal_batch",
    "multimodal_loss",
]


@dataclass(frozen=True)
class MultimodalShape:
    """Sizes of the two networks; the vision shape's classes are not used."""

    vision: VitShape = field(default_factory=VitShape)
    language: DecoderShape = field(default_factory=lambda: DecoderShape(hidden=48, ffn=64))


PLAN = MultimodalShape(
    vision=VitShape(image=64, patch=16, hidden=128, layers=4, heads=4, mlp=512),
    language=DecoderShape(vocab=1024, hidden=256, layers=2, heads=8, kv_heads=8, ffn=704, seq=64),
)
"""The stack of the FSDP plan, L3-06: 4 vision blocks, hidden 128; 2 projection layers; 2 decoder layers, hidden 256.

The plan leaves the image, the text and the vocabulary open.
"""


class MultimodalBatch(NamedTuple):
    """Images (rows, 3, image, image) with the text that follows each: tokens and targets (rows, seq), int64."""

    images: Tensor
    tokens: Tensor
    targets: Tensor

    def part(self, rank: int, size: int) -> MultimodalBatch:
        """The equal share of `rank` among `size` ranks, in order of rows. ValueError if the rows do not divide."""
        if len(self.images) % size:
            raise ValueError(f"{len(self.images)} rows do not divide among {size} ranks: choose a multiple of {size}")
        return MultimodalBatch(*(one.chunk(size)[rank] for one in self))

    def to(self, device: torch.device | str) -> MultimodalBatch:
        """The same batch on `device`."""
        return MultimodalBatch(*(one.to(device) for one in self))


class Multimodal(nn.Module):
    """Images and tokens -> logits of the tokens, (batch, seq, vocab). Modules: `vision`, `projection`, `language`."""

    def __init__(self, shape: MultimodalShape) -> None:
        super().__init__()
        self.shape = shape
        self.vision = Encoder(shape.vision)
        self.projection = Projection(shape.vision.hidden, shape.language.hidden)
        self.language = Decoder(shape.language)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        return self.language(tokens, prefix=self.projection(self.vision(images)))


class Projection(nn.Module):
    """Linear, GELU, linear: (batch, features, vision) -> (batch, features, language)."""

    def __init__(self, vision: int, language: int) -> None:
        super().__init__()
        self.up = nn.Linear(vision, language)
        self.down = nn.Linear(language, language)

    def forward(self, features: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(features)))


def multimodal(shape: MultimodalShape = MultimodalShape(), *, seed: int = 0) -> Multimodal:
    """A `Multimodal` in fp32 on the CPU with the weights of `seed`."""
    return build(lambda: Multimodal(shape), seed)


def multimodal_batch(seed: int, rows: int = 4, shape: MultimodalShape = MultimodalShape()) -> MultimodalBatch:
    """Normal images and random text; the same for the same seed."""
    source = generator(seed, "multimodal_batch")
    images = torch.randn(rows, 3, shape.vision.image, shape.vision.image, generator=source)
    text = torch.randint(shape.language.vocab, (rows, shape.language.seq + 1), generator=source)
    return MultimodalBatch(images, text[:, :-1].contiguous(), text[:, 1:].contiguous())


def multimodal_loss(model: nn.Module, batch: MultimodalBatch) -> Tensor:
    """Cross entropy of the next token, averaged over all tokens: the mean over equal parts is the whole's."""
    return F.cross_entropy(model(batch.images, batch.tokens).flatten(0, 1), batch.targets.flatten())
