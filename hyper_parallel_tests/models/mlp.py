"""A multi-layer perceptron: the smallest network in which layers, biases and their order matter."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.models.seeding import Batch, build, generator

__all__ = ["Mlp", "mlp", "mlp_batch", "mlp_loss"]


class Mlp(nn.Module):
    """`depth` linear layers of `width` with tanh between them: (batch, width) -> (batch, width).

    Parameters are `layers.<i>.weight` (width, width) and `layers.<i>.bias` (width,).
    """

    def __init__(self, width: int, depth: int, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=bias) for _ in range(depth))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.layers[0](inputs)
        for layer in self.layers[1:]:
            hidden = layer(torch.tanh(hidden))
        return hidden


def mlp(width: int = 16, depth: int = 3, *, bias: bool = True, seed: int = 0) -> Mlp:
    """An `Mlp` in fp32 on the CPU with the weights of `seed`. An odd width gives uneven shards."""
    if width < 1 or depth < 1:
        raise ValueError(f"an mlp has at least one layer of width 1, got width={width}, depth={depth}")
    return build(lambda: Mlp(width, depth, bias), seed)


def mlp_batch(seed: int, rows: int = 8, width: int = 16) -> Batch:
    """Normal inputs and targets in fp32, each (rows, width); the same for the same seed."""
    source = generator(seed, "mlp_batch")
    return Batch(torch.randn(rows, width, generator=source), torch.randn(rows, width, generator=source))


def mlp_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Squared error averaged over all elements: the mean over equal parts is the whole's."""
    return F.mse_loss(model(batch.inputs), batch.targets)
