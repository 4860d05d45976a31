"""What the cases make regions of, and what they compare them with: the same without a region."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.models.seeding import build, generator

WIDTH, ROWS, SEED = 8, 4, 1234

REENTRANT = {"use_reentrant": True}
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "whole": {"early_stop": False},
    "reentrant": REENTRANT,
    "selective": {"policy_fn": [torch.ops.aten.addmm.default]},
}
each_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
either_kind = pytest.mark.parametrize("options", [{}, REENTRANT], ids=["default", "reentrant"])


class Noting(nn.Module):
    """The sine of a linear layer, (ROWS, WIDTH) -> (ROWS, WIDTH), which notes each of its calls by name."""

    def __init__(self, name: str, calls: list[str]) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.name, self.calls = name, calls

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls.append(self.name)
        return self.linear(inputs).sin()


def noting(names: Iterable[str], device: torch.device | str = "cpu") -> tuple[nn.Sequential, list[str]]:
    """Layers of these names one after the other, with the same weights each time, and the list of their calls."""
    calls: list[str] = []
    layers = build(lambda: nn.Sequential(*(Noting(name, calls) for name in names)), SEED)
    return layers.to(device), calls


def given(device: torch.device | str = "cpu", *, seed: int = 0, requires_grad: bool = True) -> Tensor:
    """Normal numbers (ROWS, WIDTH), the same for the same seed."""
    return torch.randn(ROWS, WIDTH, generator=generator(seed)).to(device).requires_grad_(requires_grad)


def gradients(function: Callable[..., Any], *inputs: Tensor, module: nn.Module | None = None) -> dict[str, Tensor]:
    """The output of a function, and the gradients of its sum for its inputs and for a module's parameters."""
    params = dict(module.named_parameters()) if module is not None else {}
    named = {f"input {i}": one for i, one in enumerate(inputs)} | params
    for one in named.values():
        one.grad = None
    output = function(*inputs)
    output.sum().backward()
    return {"output": output.detach()} | {name: one.grad.clone() for name, one in named.items() if one.grad is not None}


@contextmanager
def seeded(seed: int = SEED) -> Iterator[None]:
    """Context that starts with the random numbers of a seed, and after which the generators are as they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
