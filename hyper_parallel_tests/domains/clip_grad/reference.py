"""What the cases expect, computed without any engine."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

NORM_TYPES = {"p1": 1.0, "p2": 2.0, "max": math.inf}


def global_norm(gradients: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all gradients strung together to one vector, in their dtype, from sums in fp64."""
    gradients = list(gradients)
    magnitudes = torch.cat([one.detach().double().abs().flatten() for one in gradients])
    norm = magnitudes.max() if norm_type == math.inf else magnitudes.pow(norm_type).sum().pow(1 / norm_type)
    return norm.to(gradients[0].dtype)


def clipped(gradients: dict[str, Tensor], norm: Tensor, max_norm: float) -> dict[str, Tensor]:
    """The gradients as they are after clipping by their norm."""
    factor = min(1.0, max_norm / (float(norm) + 1e-6))
    return {name: (one.double() * factor).to(one.dtype) for name, one in gradients.items()}


def clip_on_one_card(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Clips the gradients of a model in place and returns their norm before it."""
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    norm = global_norm(gradients.values(), norm_type)
    for name, after in clipped(gradients, norm, max_norm).items():
        gradients[name].copy_(after)
    return norm
