"""AdamW: PyTorch's, which steps element by element and so each rank's own part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def AdamW(
    params: Iterable[Tensor] | Iterable[dict[str, Any]],
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    foreach: bool | None = None,
) -> torch.optim.Optimizer:
    """See the port."""
    return torch.optim.AdamW(params, lr, betas, eps, weight_decay, foreach=foreach)
