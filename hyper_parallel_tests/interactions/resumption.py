"""A run that saves in the middle and goes on, and one that starts anew from what was saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hyper_parallel_tests.harness.judging.parity import Track

__all__ = ["load", "save", "saved_between"]

Trained = Callable[[nn.Module, torch.optim.Optimizer, Sequence[Any]], Track]


def save(engine: Any, model: nn.Module, update: torch.optim.Optimizer, folder: Path) -> None:
    """Saves model and optimizer; all ranks call this together."""
    engine.save(_state(engine, model, update), checkpoint_id=folder)


def load(engine: Any, model: nn.Module, update: torch.optim.Optimizer, folder: Path) -> None:
    """Gives a model and a new optimizer what was saved; all ranks call this together."""
    state = _state(engine, model, update)
    engine.load(state, checkpoint_id=folder)
    engine.set_model_state_dict(model, state["model"])
    engine.set_optim_state_dict(model, update, state["optimizer"])


def _state(engine: Any, model: nn.Module, update: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": engine.get_model_state_dict(model),
        "optimizer": engine.get_optim_state_dict(model, update),
    }


def saved_between(
    engine: Any,
    model: nn.Module,
    update: torch.optim.Optimizer,
    rows: Sequence[Any],
    trained: Trained,
    folder: Path,
) -> tuple[Track, Track]:
    """Trains with half of the batches, saves, and trains with the other half.

    Returns:
        The whole run, and its second half, which a run from the checkpoint has to repeat.
    """
    half = len(rows) // 2
    before = trained(model, update, rows[:half])
    save(engine, model, update, folder)
    after = trained(model, update, rows[half:])
    return replace(before, steps=before.steps + after.steps), after
