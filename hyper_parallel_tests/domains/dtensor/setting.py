"""Tensors and placements that several files of this domain share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

PLACEMENTS = {
    "R": lambda engine: engine.Replicate(),
    "S0": lambda engine: engine.Shard(0),
    "S1": lambda engine: engine.Shard(1),
    "P": lambda engine: engine.Partial("sum"),
    "Pavg": lambda engine: engine.Partial("avg"),
    "Pmax": lambda engine: engine.Partial("max"),
}


def placed(engine: Any, kinds: str) -> list[Any]:
    """Placements by their short names, e.g. "S0-R"."""
    return [PLACEMENTS[kind](engine) for kind in kinds.split("-")]


def numbers(*size: int, seed: int = 0) -> Tensor:
    """Numbers that differ and that fp32 adds and multiplies exactly: small integers, the same on every rank."""
    return torch.randint(-8, 9, size, generator=torch.Generator().manual_seed(seed)).float()


def on(engine: Any, mesh: Any, tensor: Tensor, kinds: str) -> Any:
    """`tensor` distributed over `mesh` with these placements."""
    return engine.distribute_tensor(tensor, mesh, placed(engine, kinds))


class Product(nn.Module):
    """`input @ weight`, the smallest module whose parameter can be distributed."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, input: Tensor) -> Tensor:
        return torch.matmul(input, self.weight)
