"""A network cut into stages, and the batches that it learns from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hyper_parallel_tests.harness import World
from hyper_parallel_tests.models.mlp import Mlp, mlp, mlp_batch
from hyper_parallel_tests.models.seeding import Batch

__all__ = ["STEPS", "WIDTH", "Part", "batches", "cut", "parts_of", "sgd", "whole_network"]

WIDTH = 8
STEPS = 2
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class Part(nn.Module):
    """Consecutive layers of an `Mlp` under their own names: rows of inputs -> rows of outputs, or at the end a loss.

    A rank gives targets to all of its stages, and all but the last leave them alone.

    Args:
        share: what the loss is multiplied by, so that the sum over the micro-batches is the mean over the batch.
        recomputed: layers whose activations are not kept.
    """

    def __init__(self, whole: Mlp, layers: range, share: float = 1.0, recomputed: Sequence[int] = ()) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(index): whole.layers[index] for index in layers})
        self._is_last = layers.stop == len(whole.layers)
        self._share, self._recomputed = share, {str(index) for index in recomputed}

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        for index, layer in self.layers.items():
            step = layer if index == "0" else partial(_after_tanh, layer)
            inputs = checkpoint(step, inputs, use_reentrant=False) if index in self._recomputed else step(inputs)
        if targets is None or not self._is_last:
            return inputs
        return F.mse_loss(inputs, targets) * self._share


def _after_tanh(layer: nn.Module, inputs: Tensor) -> Tensor:
    return layer(torch.tanh(inputs))


def whole_network(world: World, layers: int) -> Mlp:
    return mlp(WIDTH, layers).to(world.device)


def cut(counts: Sequence[int]) -> list[range]:
    """The layers of each stage, of which it has so many."""
    ends = [sum(counts[:index]) for index in range(len(counts) + 1)]
    return [range(first, last) for first, last in zip(ends[:-1], ends[1:], strict=True)]


def parts_of(world: World, counts: Sequence[int], stages: Sequence[int], **options: Any) -> list[Part]:
    """This rank's stages of a network of so many layers a stage."""
    whole, spans = whole_network(world, sum(counts)), cut(counts)
    return [Part(whole, spans[index], **options) for index in stages]


def batches(world: World, rows: int = 8, steps: int = STEPS) -> list[Batch]:
    """The same on all ranks."""
    return [mlp_batch(seed, rows, WIDTH).to(world.device) for seed in range(steps)]
