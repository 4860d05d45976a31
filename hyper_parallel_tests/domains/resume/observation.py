"""What is seen of a trainer's ingredients without asking it for its state."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hyper_parallel_tests.harness.judging.comparison import full

__all__ = ["INGREDIENTS", "ingredients", "names_of_parameters"]


def names_of_parameters(trainer: Any) -> dict[int, str]:
    """The name of each parameter, by the object."""
    return {id(one): name for name, one in trainer.model.named_parameters()}


def parameters(trainer: Any) -> dict[str, Tensor]:
    return {name: full(one) for name, one in trainer.model.named_parameters()}


def buffers(trainer: Any) -> dict[str, Tensor]:
    return {name: full(one) for name, one in trainer.model.named_buffers()}


def optimizer_values(trainer: Any) -> dict[str, Tensor]:
    """Moments and step counts, by the names of the parameters whose they are."""
    names = names_of_parameters(trainer)
    return {
        f"{names[id(parameter)]}.{key}": full(value)
        for parameter, values in trainer.optimizer.state.items()
        for key, value in values.items()
    }


def optimizer_setting(key: str) -> Callable[[Any], dict[str, Tensor]]:
    """A setting of the optimizer, as each parameter has it."""

    def setting(trainer: Any) -> dict[str, Tensor]:
        names = names_of_parameters(trainer)
        groups = trainer.optimizer.param_groups
        return {names[id(one)]: torch.tensor(group[key]) for group in groups for one in group["params"]}

    return setting


def schedule(trainer: Any) -> dict[str, Tensor]:
    """Learning rates now, the full ones, and the step that the schedule is at."""
    found = trainer.lr_scheduler
    return {
        "now": torch.tensor(found.get_last_lr()),
        "full": torch.tensor(found.base_lrs),
        "step": torch.tensor(found.last_epoch),
    }


def loss_scale(trainer: Any) -> dict[str, Tensor]:
    """The scale, and what becomes of it in the next steps without overflow."""
    state = trainer.scaler.state_dict()
    return {key.strip("_"): torch.tensor(state[key]) for key in ("scale", "_growth_tracker", "growth_interval")}


def place_in_data(trainer: Any) -> dict[str, Tensor]:
    """Epoch and position."""
    loader = trainer.train_dataloader
    return {"epoch": torch.tensor(loader.epoch), "position": torch.tensor(loader.position)}


def order_of_rows(trainer: Any) -> dict[str, Tensor]:
    """Rows at every place of the first two epochs; the place stays as it is, and no row is read."""
    loader = trainer.train_dataloader
    before, found = loader.state_dict(), []
    for epoch in range(2):
        for position in range(before["rows"]):
            loader.load_state_dict(before | {"epoch": epoch, "position": position})
            found.append(loader.next_rows())
    loader.load_state_dict(before)
    return {"rows": torch.tensor(found)}


def gradients(trainer: Any) -> dict[str, Tensor]:
    """Of the open window."""
    return {name: full(one.grad) for name, one in trainer.model.named_parameters() if one.grad is not None}


def progress(trainer: Any) -> dict[str, Tensor]:
    return {
        "global_step": torch.tensor(trainer.state.global_step),
        "micro_step": torch.tensor(trainer.state.micro_step),
    }


def window_loss(trainer: Any) -> dict[str, Tensor]:
    """What the open window adds to the loss of its step."""
    return {"loss": torch.tensor(trainer.state.window_loss)}


def pytorch_numbers(trainer: Any) -> dict[str, Tensor]:
    before = torch.get_rng_state()
    found = {"drawn": torch.rand(4)}
    torch.set_rng_state(before)
    return found


def python_numbers(trainer: Any) -> dict[str, Tensor]:
    """Normal ones too, of which the generator keeps every other one for later."""
    before = random.getstate()
    found = {"drawn": torch.tensor([random.gauss(0, 1), random.random(), random.gauss(0, 1)])}
    random.setstate(before)
    return found


def numpy_numbers(trainer: Any) -> dict[str, Tensor]:
    before = np.random.get_state()
    found = {"drawn": torch.tensor([np.random.randn(), np.random.random(), np.random.randn()])}
    np.random.set_state(before)
    return found


def stream_numbers(trainer: Any) -> dict[str, Tensor]:
    """Of the named stream."""
    tracker = trainer.rng_tracker
    before = tracker.get_states()
    with tracker.fork("noise"):
        found = {"drawn": torch.rand(4)}
    tracker.set_states(before)
    return found


def best_metric(trainer: Any) -> dict[str, Tensor]:
    """The best value, or -1, the step that it is of, and how many worse ones came since."""
    found = next(one for one in trainer.callbacks if one.name == "best_metric").state_dict()
    return {key: torch.tensor(-1.0 if value is None else value) for key, value in found.items()}


def running_mean(trainer: Any) -> dict[str, Tensor]:
    """What the next record of the log has already."""
    found = next(one for one in trainer.callbacks if one.name == "logging").state_dict()
    return {key: torch.tensor(value) for key, value in found.items()}


def frozen(trainer: Any) -> dict[str, Tensor]:
    """Which parameters are not trained."""
    return {name: torch.tensor(not one.requires_grad) for name, one in trainer.model.named_parameters()}


INGREDIENTS: dict[str, Callable[[Any], dict[str, Tensor]]] = {
    "parameters": parameters,
    "buffers": buffers,
    "optimizer_values": optimizer_values,
    "learning_rates": optimizer_setting("lr"),
    "betas": optimizer_setting("betas"),
    "weight_decay": optimizer_setting("weight_decay"),
    "schedule": schedule,
    "loss_scale": loss_scale,
    "place_in_data": place_in_data,
    "order_of_rows": order_of_rows,
    "gradients": gradients,
    "progress": progress,
    "window_loss": window_loss,
    "pytorch_numbers": pytorch_numbers,
    "python_numbers": python_numbers,
    "numpy_numbers": numpy_numbers,
    "stream_numbers": stream_numbers,
    "best_metric": best_metric,
    "running_mean": running_mean,
    "frozen": frozen,
}


def ingredients(trainer: Any) -> dict[str, dict[str, Tensor]]:
    """All of them, by name."""
    return {name: seen(trainer) for name, seen in INGREDIENTS.items()}
