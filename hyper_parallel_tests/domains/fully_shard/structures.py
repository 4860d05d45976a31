"""Small networks that are no plain chain: a tied weight, a layer used twice or sometimes, buffers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Tied(nn.Module):
    """The first and the last layer are one matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.last = nn.Linear(width, width)
        self.last.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(inputs)))))


class Twice(nn.Module):
    """One wrapped layer runs twice in each forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.middle, self.last = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.middle(inputs)))))


class Sometimes(nn.Module):
    """The wrapped middle layer takes part in every other step, and `never` in none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(width, width), nn.Linear(width, width)
        self.never, self.calls = nn.Linear(width, width), 0

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        self.calls += 1
        return self.middle(hidden) if self.calls % 2 else hidden


class Normed(nn.Module):
    """Batch normalisation, with running statistics as buffers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.middle, self.norm, self.last = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.middle(inputs))))
