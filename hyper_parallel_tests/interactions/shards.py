"""Models that are sharded layer by layer."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["by_layer"]


def by_layer(engine: Any, model: nn.Module, mesh: Any) -> Any:
    """Each of the model's `layers` a unit, and what is left of it another."""
    for layer in model.layers:
        engine.fully_shard(layer, mesh=mesh)
    return engine.fully_shard(model, mesh=mesh)
