"""Wrappers that put a name of their own between a layer and its parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn


def checkpointed(engine: Any, module: nn.Module) -> nn.Module:
    """Computes once more in backward."""
    return engine.checkpoint_wrapper(module)


def compiled(_: Any, module: nn.Module) -> nn.Module:
    """As `torch.compile` gives it, before anything is compiled."""
    return torch.compile(module, backend="eager")


each_wrapper = pytest.mark.parametrize("wrap", [checkpointed, compiled])
