"""Stages whose gradients are not of a plain chain of layers: all of (rows, WIDTH) -> (rows, WIDTH)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.pipeline_parallel.networks import WIDTH
from hyper_parallel_tests.models.seeding import build

__all__ = ["STRUCTURES", "Ending", "structure"]


class Twice(nn.Module):
    """One layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(inputs)))


class Residual(nn.Module):
    """Two ways from the inputs to the outputs, and a norm before them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.down(torch.tanh(self.up(self.norm(inputs))))


class Frozen(nn.Module):
    """A layer that learns its bias alone, and one that learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        for one in (self.first.weight, *self.second.parameters()):
            one.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(inputs)))


class Unused(nn.Module):
    """A layer beside one that no input reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.used(inputs))


class Factors(nn.Module):
    """A weight that is computed from two, as by weight normalisation and by adapters of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.empty(WIDTH, 2)), nn.Parameter(torch.empty(2, WIDTH))
        self.scale = nn.Parameter(torch.empty(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(inputs @ (self.left @ self.right)) * self.scale


class Crossed(nn.Module):
    """One layer in both branches of the inputs, of which one feeds the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mixed = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        gate = torch.sigmoid(self.layer(inputs))
        return self.mixed(gate * inputs) + self.layer(gate)


STRUCTURES: dict[str, Callable[[], nn.Module]] = {
    "used_twice": Twice,
    "residual": Residual,
    "frozen": Frozen,
    "unused": Unused,
    "factors": Factors,
    "crossed": Crossed,
}


class Ending(nn.Module):
    """A stage, and after the last one the squares of its outputs as a loss."""

    def __init__(self, stage: nn.Module, is_last: bool, share: float) -> None:
        super().__init__()
        self.stage, self._is_last, self._share = stage, is_last, share

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.stage(inputs)
        return outputs.square().mean() * self._share if self._is_last else outputs


def structure(name: str, index: int) -> nn.Module:
    """The stage number `index` of such ones."""
    return build(STRUCTURES[name], index)
