"""Everything that the next step of a trainer depends on, by flat keys: taken from it, read, and put back.

What is each rank's own has the rank in its key: the generators, and the loss of a window that is open. On other ranks,
or another mesh of as many, the generators start anew, from seeds that nobody has had: which ranks have to draw the same
numbers depends on the mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.engines.torch_native.distributed_checkpoint import load, read_checkpoint_metadata
from hyper_parallel_tests.engines.torch_native.model_state_dict import get_model_state_dict, set_model_state_dict
from hyper_parallel_tests.engines.torch_native.trainer.optimizer_state import (
    empty_like_saved,
    optimizer_state,
    optimizer_targets,
    parameter_names,
    set_optimizer_state,
)
from hyper_parallel_tests.engines.torch_native.trainer.random_state import random_state, set_random_state

__all__ = ["collect", "read", "restore"]

Reader = Callable[[dict[str, Any], Path], None]


def collect(trainer: Any) -> dict[str, Any]:
    """The whole state; tensors are the trainer's own."""
    found = _prefixed("model", get_model_state_dict(trainer.model))
    found |= _prefixed("optimizer", optimizer_state(trainer.model, trainer.optimizer))
    found |= _prefixed("progress", _progress(trainer)) | _ranks(trainer)
    found |= _prefixed("data", trainer.train_dataloader.state_dict())
    found |= _prefixed("scheduler", _scheduler(trainer))
    found |= _prefixed("scaler", trainer.scaler.state_dict())
    for name, parameter in parameter_names(trainer.model).items():
        found[f"frozen.{name}"] = not parameter.requires_grad
        if parameter.grad is not None:
            found[f"gradients.{name}"] = parameter.grad
    for callback in trainer.callbacks:
        found |= _prefixed(f"callbacks.{callback.name}", callback.state_dict())
    own = {"window_loss": trainer.state.window_loss, **_prefixed("random", random_state(trainer.rng_tracker))}
    return found | _prefixed(f"rank_{dist.get_rank()}", own)


def restore(trainer: Any, folder: Path, reader: Reader) -> None:
    """Puts the trainer where it was when `collect` was saved to a folder.

    Raises:
        ValueError: the checkpoint is of another model, optimizer or data; nothing has changed then but values that were
            read in place.
    """
    saved = read_checkpoint_metadata(folder).state_dict_metadata
    target = _targets(trainer, saved)
    _fill(target, folder, reader)
    trainer.train_dataloader.load_state_dict(_part("data", target))
    set_model_state_dict(trainer.model, _part("model", target))
    for name, parameter in parameter_names(trainer.model).items():
        parameter.requires_grad_(not target[f"frozen.{name}"])
        parameter.grad = target.get(f"gradients.{name}")
    set_optimizer_state(trainer.model, trainer.optimizer, _part("optimizer", target))
    if trainer.lr_scheduler is not None:
        trainer.lr_scheduler.load_state_dict(_part("scheduler", target) | {"lr_lambdas": [None]})
    if trainer.scaler.is_enabled():
        trainer.scaler.load_state_dict(_part("scaler", target))
    for callback in trainer.callbacks:
        if state := _part(f"callbacks.{callback.name}", target):
            callback.load_state_dict(state)
    _set_progress(trainer, _part("progress", target))
    _set_own(trainer, target)


def read(target: dict[str, Any], folder: Path) -> None:
    """Fills a target from a checkpoint, tensors in place."""
    load(target, checkpoint_id=folder)


def _fill(target: dict[str, Any], folder: Path, reader: Reader) -> None:
    """All values that are restored come through here."""
    reader(target, folder)


def _targets(trainer: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """What this rank reads of a checkpoint: all that it has itself, and what the run had that it has not yet."""
    now = collect(trainer)
    target = {
        key: value
        for key, value in now.items()
        if not key.startswith(("optimizer.", "gradients.", "callbacks.", "rank_"))
    }
    target |= _prefixed("optimizer", optimizer_targets(trainer.model, trainer.optimizer, _part("optimizer", saved)))
    parameters = parameter_names(trainer.model)
    for name, one in _part("gradients", saved).items():
        if name in parameters:
            target[f"gradients.{name}"] = empty_like_saved(one, parameters[name])
    for callback in trainer.callbacks:
        # A callback that the saved run had not begins here.
        if _part(f"callbacks.{callback.name}", saved):
            target |= _prefixed(f"callbacks.{callback.name}", callback.state_dict())
    own = f"rank_{dist.get_rank()}."
    for key, one in saved.items():
        if key.startswith(own) or key.endswith(".window_loss"):
            target[key] = now[key] if key in now else empty_like_saved(one, None)
    return target


def _progress(trainer: Any) -> dict[str, Any]:
    state = trainer.state
    return {
        "global_step": state.global_step,
        "micro_step": state.micro_step,
        "should_stop": state.should_stop,
    }


def _ranks(trainer: Any) -> dict[str, Any]:
    """How many ranks there are, and how they lie."""
    mesh = trainer.mesh
    dims = () if mesh is None else zip(mesh.mesh_dim_names, mesh.shape, strict=True)
    return {"ranks.size": dist.get_world_size(), "ranks.mesh": " ".join(f"{name}={n}" for name, n in dims if n > 1)}


def _set_progress(trainer: Any, progress: Mapping[str, Any]) -> None:
    state = trainer.state
    state.global_step, state.micro_step = progress["global_step"], progress["micro_step"]
    state.should_stop = progress["should_stop"]


def _set_own(trainer: Any, target: Mapping[str, Any]) -> None:
    """What is each rank's own; where ranks are others or lie otherwise, the mean loss of the window and new seeds."""
    if target.items() >= _ranks(trainer).items():
        own = _part(f"rank_{dist.get_rank()}", target)
        trainer.state.window_loss = own["window_loss"]
        set_random_state(_part("random", own), trainer.rng_tracker)
    else:
        losses = [value for key, value in target.items() if key.endswith(".window_loss")]
        trainer.state.window_loss = sum(losses) / len(losses)
        trainer.seed(trainer.state.global_step, trainer.state.micro_step)


def _scheduler(trainer: Any) -> dict[str, Any]:
    if trainer.lr_scheduler is None:
        return {}
    return {key: value for key, value in trainer.lr_scheduler.state_dict().items() if key != "lr_lambdas"}


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{key}": value for key, value in values.items()}


def _part(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Of the values under a prefix, the keys behind it."""
    return {key[len(prefix) + 1 :]: value for key, value in values.items() if key.startswith(f"{prefix}.")}
