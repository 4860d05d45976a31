"""The network that most cases start from, and the ways in which a deferred model gets its storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SEED = 7


class Scale(nn.Module):
    """Multiplies columns by a parameter and by a table that is not in the state dict, and counts its calls."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(width))
        self.register_buffer("calls", torch.empty(()))
        self.register_buffer("table", torch.empty(width), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.gain, mean=1.0, std=0.1)
        self.calls.fill_(1)
        self.table = torch.arange(len(self.table), dtype=torch.float32, device=self.table.device).cos()

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.gain * self.table


class Network(nn.Module):
    """Linear, scale, linear, linear: (batch, width) -> (batch, width). The outer layers share their weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.scale = Scale(width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, width)
        self.third.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.third(torch.tanh(self.second(torch.tanh(self.scale(self.first(inputs))))))


def started(make: Callable[[], nn.Module], device: torch.device | str = "cpu") -> nn.Module:
    """The model after an ordinary start, made where it computes: each kind of device draws its own numbers."""
    torch.manual_seed(SEED)
    with torch.device(device):
        return make()


def deferred(engine: Any, make: Callable[[], nn.Module], include_buffers: bool = False) -> nn.Module:
    """The same model without storage for its parameters."""
    with engine.init_empty_weights(include_buffers=include_buffers):
        return make()


def initialise(engine: Any, model: nn.Module, device: torch.device | str = "cpu") -> None:
    """Storage and values as at an ordinary start."""
    torch.manual_seed(SEED)
    with torch.device(device):
        engine.init_parameters(model)


def draw(engine: Any, model: nn.Module, ordinary: nn.Module) -> None:
    """Storage and values as at the ordinary start of another model."""
    initialise(engine, model, next(ordinary.parameters()).device)


def empty(engine: Any, model: nn.Module, ordinary: nn.Module) -> None:
    """Storage alone, by PyTorch's own method of modules."""
    model.to_empty(device=next(ordinary.parameters()).device)


def load(engine: Any, model: nn.Module, ordinary: nn.Module) -> None:
    """Storage and values from the state dict of a model after an ordinary start, whole on every rank."""
    options = engine.StateDictOptions(full_state_dict=True)
    engine.set_model_state_dict(model, ordinary.state_dict(), options=options)


MATERIALIZE = {"init_parameters": draw, "to_empty": empty, "set_model_state_dict": load}
