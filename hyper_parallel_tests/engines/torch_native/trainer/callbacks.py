"""What a trainer calls besides training: logging, validation, best metric, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hyper_parallel_tests.engines.torch_native.checkpoint_manager import CheckpointManager

if TYPE_CHECKING:
    from pathlib import Path


__all__ = ["BestMetricCallback", "Callback", "CheckpointCallback", "LoggingCallback", "ValidationCallback", "in_order"]


class Callback:
    """See the port."""

    name = ""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, state: Any) -> None:
        """See the port."""

    def on_train_end(self, state: Any) -> None:
        """See the port."""

    def on_substep_end(self, state: Any) -> None:
        """See the port."""

    def on_pre_optimizer_step(self, state: Any, *, grad_norm: float | None) -> None:
        """See the port."""

    def on_step_end(self, state: Any, *, loss: float, grad_norm: float | None) -> None:
        """See the port."""

    def on_log(self, state: Any, *, metrics: dict[str, Any]) -> None:
        """See the port."""

    def on_evaluate(self, state: Any, *, metrics: dict[str, float]) -> None:
        """See the port."""

    def on_save(self, state: Any, *, checkpoint_dir: Path) -> None:
        """See the port."""

    def on_load(self, state: Any, *, checkpoint_dir: Path) -> None:
        """See the port."""

    def state_dict(self) -> dict[str, Any]:
        """See the port."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See the port."""


class LoggingCallback(Callback):
    """A record of every so many steps, with the mean loss since the last one."""

    name = "logging"

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._loss, self._steps = 0.0, 0

    def on_step_end(self, state: Any, *, loss: float, grad_norm: float | None) -> None:
        """Adds to the mean, and records it when it is time."""
        self._loss, self._steps = self._loss + loss, self._steps + 1
        if state.global_step % self.trainer.config.logging.interval:
            return
        record = {
            "step": state.global_step,
            "loss": self._loss / self._steps,
            "grad_norm": grad_norm,
            "lr": [float(group["lr"]) for group in self.trainer.optimizer.param_groups],
            "loss_scale": self.trainer.scaler.get_scale(),
            "epoch": self.trainer.train_dataloader.epoch,
        }
        self._loss, self._steps = 0.0, 0
        state.log_history.append(record)
        self.trainer.tell("on_log", metrics=record)

    def state_dict(self) -> dict[str, Any]:
        """What the next record's mean has already."""
        return {"loss": self._loss, "steps": self._steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See the port."""
        self._loss, self._steps = state_dict["loss"], state_dict["steps"]


class ValidationCallback(Callback):
    """Evaluates every so many steps."""

    name = "validation"

    def on_step_end(self, state: Any, *, loss: float, grad_norm: float | None) -> None:
        """Evaluates when it is time."""
        if state.global_step % self.trainer.config.validation.interval == 0:
            self.trainer.tell("on_evaluate", metrics=self.trainer.evaluate())


class BestMetricCallback(Callback):
    """The best value of a metric so far and the step that it is of; ends training when none comes any more."""

    name = "best_metric"

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.best: float | None = None
        self.best_step, self.without_better = 0, 0

    def on_evaluate(self, state: Any, *, metrics: dict[str, float]) -> None:
        """Compares; an equal value is not better, and one that is no number never is."""
        wanted = self.trainer.config.best_metric
        if wanted.name not in metrics:
            raise ValueError(f"best_metric.name: validation finds {', '.join(metrics)}, and no {wanted.name}")
        value = metrics[wanted.name]
        sign = 1 if wanted.mode == "max" else -1
        if not math.isnan(value) and (self.best is None or sign * value > sign * self.best):
            self.best, self.best_step, self.without_better = value, state.global_step, 0
        else:
            self.without_better += 1
        if wanted.patience and self.without_better >= wanted.patience:
            state.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """See the port."""
        return {"best": self.best, "best_step": self.best_step, "without_better": self.without_better}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See the port."""
        self.best, self.best_step = state_dict["best"], state_dict["best_step"]
        self.without_better = state_dict["without_better"]


class CheckpointCallback(Callback):
    """Saves every so many steps, through a checkpoint manager."""

    name = "checkpoint"

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        wanted = trainer.config.checkpoint
        self.manager = CheckpointManager(
            wanted.folder, interval=wanted.interval, keep_latest_k=wanted.keep_last or None
        )

    def on_step_end(self, state: Any, *, loss: float, grad_norm: float | None) -> None:
        """Saves when it is time."""
        if self.manager.save(state.global_step, self.trainer.state_dict()):
            self.trainer.tell("on_save", checkpoint_dir=self.manager.path(state.global_step))

    def on_train_end(self, state: Any) -> None:
        """Leaves the folder to others."""
        self.manager.close()


_KINDS: tuple[type[Callback], ...] = (LoggingCallback, ValidationCallback, BestMetricCallback, CheckpointCallback)


def in_order(trainer: Any) -> list[Callback]:
    """The callbacks of a configuration. What a step leads to comes before the checkpoint of that step."""
    return [kind(trainer) for kind in _KINDS if kind.name in trainer.config.callbacks]
