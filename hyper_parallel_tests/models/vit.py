"""A vision transformer: image patches and a CLS token through pre-norm encoder blocks, then a classification head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.models.seeding import Batch, build, generator

__all__ = ["PLAN", "RATE", "Encoder", "Vit", "VitShape", "vit", "vit_batch", "vit_loss"]


@dataclass(frozen=True)
class VitShape:
    """Sizes of a vision transformer.

    Attributes:
        image: height and width of an image of three channels, a multiple of patch.
        patch: height and width of a patch.
        hidden: width of the residual stream, a multiple of heads.
        layers: number of encoder blocks.
        heads: attention heads.
        mlp: width inside the feed-forward.
        classes: number of classes.
    """

    image: int = 8
    patch: int = 4
    hidden: int = 32
    layers: int = 2
    heads: int = 4
    mlp: int = 64
    classes: int = 10

    def __post_init__(self) -> None:
        if self.image % self.patch:
            raise ValueError(f"image={self.image} must be a multiple of patch={self.patch}")
        if self.hidden % self.heads:
            raise ValueError(f"hidden={self.hidden} must be a multiple of heads={self.heads}")

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2


PLAN = VitShape(image=224, patch=16, hidden=256, layers=6, heads=8, mlp=1024, classes=1000)
"""The vision transformer of the FSDP plan, L3-04: 6 blocks, hidden 256, images of 224."""

RATE = 0.01
"""A learning rate at which PLAN learns: ten times as much makes it diverge in a step, and its gradients vanish."""


class Encoder(nn.Module):
    """Images (batch, 3, image, image) -> features (batch, 1 + patches, hidden), the CLS token first.

    Modules: `patches` (`projection`), `blocks.<i>` with `attention_norm`, `attention` (`q`, `k`, `v`, `o`), `mlp_norm`
    and `mlp` (`up`, `down`), then `norm`. Parameters of its own: `cls` and `positions`.
    """

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.patches = PatchEmbedding(shape)
        self.cls = nn.Parameter(torch.empty(1, shape.hidden))
        self.positions = nn.Parameter(torch.empty(1 + shape.patches, shape.hidden))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images)
        cls = self.cls.expand(len(images), 1, -1)
        hidden = torch.cat((cls, patches), dim=1) + self.positions
        for block in self.blocks:
            hidden = block(hidden)
        return self.norm(hidden)


class PatchEmbedding(nn.Module):
    """Images (batch, 3, image, image) -> (batch, patches, hidden), row by row.

    A linear layer on each patch's values, which is a convolution whose stride is its kernel.
    """

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.patch = shape.patch
        self.projection = nn.Linear(3 * shape.patch**2, shape.hidden)

    def forward(self, images: Tensor) -> Tensor:
        return self.projection(F.unfold(images, self.patch, stride=self.patch).transpose(1, 2))


class Block(nn.Module):
    """Attention, then MLP, each of the normed input and added; (batch, tokens, hidden) in and out."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.hidden)
        self.attention = Attention(shape)
        self.mlp_norm = nn.LayerNorm(shape.hidden)
        self.mlp = FeedForward(shape)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.mlp(self.mlp_norm(hidden))


class Attention(nn.Module):
    """Multi-head attention of all tokens to all; (batch, tokens, hidden) in and out."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.head_width = shape.hidden // shape.heads
        self.q = nn.Linear(shape.hidden, shape.hidden)
        # A bias here would add the same to all scores of a query: it changes nothing and its gradient is zero.
        self.k = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.v = nn.Linear(shape.hidden, shape.hidden)
        self.o = nn.Linear(shape.hidden, shape.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        q, k, v = (
            project(hidden).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for project in (self.q, self.k, self.v)
        )
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Linear, GELU, linear; (batch, tokens, hidden) in and out."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.hidden, shape.mlp)
        self.down = nn.Linear(shape.mlp, shape.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(hidden)))


class Vit(nn.Module):
    """Images (batch, 3, image, image) -> logits (batch, classes). Modules: `encoder`, and `head` on the CLS token."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.shape = shape
        self.encoder = Encoder(shape)
        self.head = nn.Linear(shape.hidden, shape.classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images)[:, 0])


def vit(shape: VitShape = VitShape(), *, seed: int = 0) -> Vit:
    """A `Vit` in fp32 on the CPU with the weights of `seed`."""
    return build(lambda: Vit(shape), seed)


def vit_batch(seed: int, rows: int = 4, shape: VitShape = VitShape()) -> Batch:
    """Normal images (rows, 3, image, image) and random classes (rows,), int64; the same for the same seed."""
    source = generator(seed, "vit_batch")
    images = torch.randn(rows, 3, shape.image, shape.image, generator=source)
    return Batch(images, torch.randint(shape.classes, (rows,), generator=source))


def vit_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy averaged over the images: the mean over equal parts is the whole's."""
    return F.cross_entropy(model(batch.inputs), batch.targets)
