"""AdamW and Muon as their papers write them, in double precision, on whole tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def adamw_steps(
    start: Tensor,
    grads: Iterable[Tensor | None],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> list[Tensor]:
    """The parameter after each step; a step without a gradient is none."""
    first, second, number = torch.zeros_like(start), torch.zeros_like(start), 0
    found = [start]
    for grad in grads:
        now = found[-1]
        if grad is not None:
            number += 1
            first = betas[0] * first + (1 - betas[0]) * grad
            second = betas[1] * second + (1 - betas[1]) * grad**2
            step = first / (1 - betas[0] ** number) / ((second / (1 - betas[1] ** number)).sqrt() + eps)
            now = now - lr * weight_decay * now - lr * step
        found.append(now)
    return found[1:]


def muon_directions(grads: Iterable[Tensor], *, momentum: float, nesterov: bool, ns_steps: int) -> list[Tensor]:
    """The orthogonalised matrix of each step."""
    average: Tensor | float = 0.0
    found = []
    for grad in grads:
        average = momentum * average + (1 - momentum) * grad
        found.append(newton_schulz(momentum * average + (1 - momentum) * grad if nesterov else average, ns_steps))
    return found


def newton_schulz(matrix: Tensor, steps: int) -> Tensor:
    """The matrix with its singular values moved towards one."""
    a, b, c = COEFFICIENTS
    found = matrix / matrix.norm()
    for _ in range(steps):
        square = found @ found.T
        found = a * found + (b * square + c * square @ square) @ found
    return found


def muon_size(shape: torch.Size, lr: float, matched_adamw_rms: float) -> float:
    """By what a direction is multiplied."""
    return lr * matched_adamw_rms * math.sqrt(max(shape))
