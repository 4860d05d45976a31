"""Model state dicts of torch_native: PyTorch's, from distributed checkpointing."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

__all__ = ["StateDictOptions", "get_model_state_dict", "set_model_state_dict"]


def get_model_state_dict(model: nn.Module, *, options: StateDictOptions | None = None) -> dict[str, torch.Tensor]:
    """See the port."""
    return state_dict.get_model_state_dict(model, options=options)
