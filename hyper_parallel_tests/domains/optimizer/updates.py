"""Steps of divided tensors with given gradients, and PyTorch's on whole ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.optimizer.network import muon_on_one_card
from hyper_parallel_tests.models.seeding import generator

STEPS = 3
OPTIONS = {
    "AdamW": {"lr": 0.05, "weight_decay": 0.1},
    "Muon": {"lr": 0.05, "weight_decay": 0.1},
}


def given(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=generator(seed, "updates"))


def divided_steps(
    engine: Any, kind: str, shape: tuple[int, ...], mesh: Any, placements: Any, **options: Any
) -> list[Tensor]:
    """The parameter after each step of an optimizer of the engine, divided."""
    parameter = nn.Parameter(engine.distribute_tensor(given(0, shape), mesh, placements))
    optimizer = getattr(engine, kind)([parameter], **(OPTIONS[kind] | options))
    found = []
    for step in range(STEPS):
        parameter.grad = engine.distribute_tensor(given(1 + step, shape), mesh, placements)
        optimizer.step()
        found.append(parameter.detach().clone())
    return found


def whole_steps(kind: str, start: Tensor, grads: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
    """The same by PyTorch's optimizer on one card."""
    parameter = nn.Parameter(start.clone())
    optimizer = (torch.optim.AdamW if kind == "AdamW" else muon_on_one_card)([parameter], **(OPTIONS[kind] | options))
    found = []
    for grad in grads:
        parameter.grad = grad.clone()
        optimizer.step()
        found.append(parameter.detach().clone())
    return found


def on_one_card(kind: str, shape: tuple[int, ...], **options: Any) -> list[Tensor]:
    """The steps of the whole tensor, with the same numbers."""
    return whole_steps(kind, given(0, shape), [given(1 + step, shape) for step in range(STEPS)], options)
