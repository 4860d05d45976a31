"""Weights and data that depend on a seed alone, and neither read nor move the global random state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


class Batch(NamedTuple):
    """Inputs and targets; dimension 0 of both is the batch."""

    inputs: Tensor
    targets: Tensor

    def part(self, rank: int, size: int) -> Batch:
        """The equal share of `rank` among `size` ranks, in order of rows.

        Raises:
            ValueError: the rows do not divide evenly, so the mean over ranks would not be the batch's mean.
        """
        rows = len(self.inputs)
        if rows % size:
            raise ValueError(f"{rows} rows do not divide among {size} ranks: choose a multiple of {size}")
        return Batch(self.inputs.chunk(size)[rank], self.targets.chunk(size)[rank])

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device`."""
        return Batch(self.inputs.to(device), self.targets.to(device))


def generator(seed: int, name: str = "") -> torch.Generator:
    """A CPU generator of its own stream for each (seed, name)."""
    # torch's CPU generator takes the low 32 bits of a seed and no more, so both have to be mixed into them.
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest))


def build(make: Callable[[], Model], seed: int) -> Model:
    """Make a module and give it the weights of `seed`."""
    with torch.random.fork_rng(devices=[]):
        model = make()
    initialise(model, seed)
    return model


def initialise(model: nn.Module, seed: int) -> None:
    """Give every parameter the values of its own name's stream, so that parts of a model start as the whole
    does.

    Matrices are normal with variance 1 / columns. Vectors called `weight` (of norms) are near 1, other
    vectors (biases) near 0, but none exactly so: an error that such values would hide must show.
    """
    with torch.no_grad():
        for name, param in model.named_parameters():
            values = torch.randn(param.shape, generator=generator(seed, name))
            if param.ndim > 1:
                values *= param.shape[-1] ** -0.5
            else:
                values = values * 0.1 + (1.0 if name.endswith("weight") else 0.0)
            param.copy_(values)
