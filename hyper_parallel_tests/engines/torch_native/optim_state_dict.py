"""Optimizer state dicts of torch_native: PyTorch's, from distributed checkpointing."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict
from torch.distributed.checkpoint.state_dict import StateDictOptions

__all__ = ["get_optim_state_dict", "set_optim_state_dict"]


def get_optim_state_dict(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, options: StateDictOptions | None = None
) -> dict[str, Any]:
    """See the port."""
    return state_dict.get_optimizer_state_dict(model, optimizer, options=options)


def set_optim_state_dict(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    optim_state_dict: dict[str, Any],
    *,
    options: StateDictOptions | None = None,
) -> None:
    """See the port."""
    state_dict.set_optimizer_state_dict(model, optimizer, optim_state_dict, options=options)
