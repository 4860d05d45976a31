"""The trainer: a loop of micro-batches, updates and callbacks around a model that is divided already."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset

from hyper_parallel_tests.engines.torch_native.clip_grad import clip_grad_norm_
from hyper_parallel_tests.engines.torch_native.distributed_checkpoint import save
from hyper_parallel_tests.engines.torch_native.mixed_precision import ShardedGradScaler
from hyper_parallel_tests.engines.torch_native.model_state_dict import get_model_state_dict
from hyper_parallel_tests.engines.torch_native.resumable_data import StatefulDataLoader
from hyper_parallel_tests.engines.torch_native.rng import parallel_seed
from hyper_parallel_tests.engines.torch_native.trainer import state as state_of
from hyper_parallel_tests.engines.torch_native.trainer.callbacks import Callback, CheckpointCallback, in_order
from hyper_parallel_tests.engines.torch_native.trainer.config import check_parallel_degrees
from hyper_parallel_tests.engines.torch_native.trainer.random_state import (
    random_state,
    seed_everything,
    set_random_state,
)
from hyper_parallel_tests.engines.torch_native.trainer.settings import TrainerConfig

__all__ = ["BaseTrainer", "TrainerState"]

# Ranks along these have other rows, and so other random numbers.
_DATA_DIMS = ("dp", "fsdp", "ep")


@dataclass
class TrainerState:
    """See the port."""

    global_step: int = 0
    micro_step: int = 0
    window_loss: float = 0.0
    should_stop: bool = False
    log_history: list[dict[str, Any]] = field(default_factory=list)


class BaseTrainer:
    """See the port."""

    def __init__(
        self,
        config: TrainerConfig,
        model: nn.Module,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        dataset: Dataset[Any],
        *,
        mesh: Any = None,
        optimizer: torch.optim.Optimizer | None = None,
        validation_dataset: Dataset[Any] | None = None,
        forward_backward: Callable[[nn.Module, Any, float], Tensor] | None = None,
        rng_tracker: Any = None,
        callbacks: Sequence[Callable[[Any], Callback]] = (),
    ) -> None:
        degrees = check_parallel_degrees(config, dist.get_world_size())
        if "validation" in config.callbacks and validation_dataset is None:
            raise ValueError("callbacks: validation needs rows; give the trainer a validation_dataset")
        self.config, self.model, self.loss_fn, self.mesh = config, model, loss_fn, mesh
        self.rng_tracker = rng_tracker
        self.state = TrainerState()
        self.optimizer = optimizer if optimizer is not None else _optimizer(config, model)
        self.lr_scheduler = _scheduler(config, self.optimizer)
        self.device = next(model.parameters()).device
        scale = config.loss_scale
        self.scaler = ShardedGradScaler(
            self.device.type,
            init_scale=scale.init_scale,
            growth_interval=scale.growth_interval,
            enabled=scale.enabled,
        )
        size = math.prod(degrees[name] for name in _DATA_DIMS)
        rank = 0 if mesh is None else parallel_seed(0, mesh, _DATA_DIMS)
        rows = config.training.global_batch_size // (size * config.training.gradient_accumulation_steps)
        self._data_rank = rank
        self._loader = partial(StatefulDataLoader, rank=rank, size=size)
        self.train_dataloader = self._loader(
            dataset, rows, seed=config.data.seed, shuffle=config.data.shuffle, drop_last=config.data.drop_last
        )
        self._validation = validation_dataset
        self._forward_backward = forward_backward or self._plain_forward_backward
        self.callbacks = [make(self) for make in callbacks] + in_order(self)
        self._begun = False

    def train(self, *, steps: int | None = None, micro_batches: int | None = None) -> None:
        """See the port."""
        if not self._begun:
            self.seed()
        last = self.config.training.steps
        if steps is not None:
            last = min(last, self.state.global_step + steps)
        self.tell("on_train_begin")
        done = 0
        while self.state.global_step < last and not self.state.should_stop and done != micro_batches:
            self._micro_batch()
            done += 1
        self.tell("on_train_end")

    def seed(self, *more: int) -> None:
        """Starts this rank's generators: as the configuration says, and by further numbers for other streams."""
        self._begun = True
        seed = self.config.training.seed
        rank_seed = seed if self.mesh is None else parallel_seed(seed, self.mesh, ("pp", *_DATA_DIMS))
        seed_everything(rank_seed, *more)

    def evaluate(self) -> dict[str, float]:
        """See the port."""
        if self._validation is None:
            raise ValueError("there are no rows to evaluate: give the trainer a validation_dataset")
        modes, drawn = [(one, one.training) for one in self.model.modules()], random_state(self.rng_tracker)
        loader, total, rows = self._loader(self._validation, 1, shuffle=False), 0.0, 0
        self.model.eval()
        try:
            with torch.no_grad():
                while loader.epoch == 0:
                    # Rows that only fill up the last round are seen by all ranks and count for none.
                    counts = loader.position + self._data_rank < len(self._validation)
                    loss = _number(self.loss_fn(self.model, loader.next_batch()))
                    if counts:
                        total, rows = total + loss, rows + 1
        finally:
            for module, training in modes:
                module.training = training
            set_random_state(drawn, self.rng_tracker)
        return {"loss": self._mean_over_ranks(total) / self._mean_over_ranks(rows)}

    def state_dict(self) -> dict[str, Any]:
        """See the port."""
        return state_of.collect(self)

    def save_checkpoint(self, folder: Path | str) -> None:
        """See the port."""
        save(self.state_dict(), checkpoint_id=folder)
        self.tell("on_save", checkpoint_dir=Path(folder))

    def load_checkpoint(self, folder: Path | str) -> None:
        """See the port."""
        self._load(Path(folder), state_of.read)

    def resume(self) -> int | None:
        """See the port."""
        manager = next((one.manager for one in self.callbacks if isinstance(one, CheckpointCallback)), None)
        if manager is None:
            raise ValueError("callbacks: checkpoint is not among them, so there is no folder to resume from; name it")
        step = manager.latest()
        if step is not None:
            self._load(manager.path(step), lambda target, _: manager.load(target, step))
        return step

    def export(self, folder: Path | str, *, dtype: torch.dtype | None = None) -> None:
        """See the port."""
        state = get_model_state_dict(self.model)
        if dtype is not None:
            state = {name: one.to(dtype) if one.is_floating_point() else one for name, one in state.items()}
        save(state, checkpoint_id=folder)

    def tell(self, event: str, **what: Any) -> None:
        """Calls a method of all callbacks, in their order."""
        for callback in self.callbacks:
            getattr(callback, event)(self.state, **what)

    def _load(self, folder: Path, reader: state_of.Reader) -> None:
        state_of.restore(self, folder, reader)
        self._begun = True
        self.tell("on_load", checkpoint_dir=folder)

    def _micro_batch(self) -> None:
        share = 1 / self.config.training.gradient_accumulation_steps
        loss = self._forward_backward(self.model, self.train_dataloader.next_batch(), share)
        self.state.window_loss += _number(loss) * share
        self.state.micro_step += 1
        self.tell("on_substep_end")
        if self.state.micro_step == self.config.training.gradient_accumulation_steps:
            self._update()

    def _update(self) -> None:
        self.scaler.unscale_(self.optimizer)
        norm = None
        if self.config.training.max_grad_norm:
            stages = self.mesh["pp"] if self.mesh is not None and "pp" in self.mesh.mesh_dim_names else None
            parameters = self.model.parameters()
            norm = float(clip_grad_norm_(parameters, self.config.training.max_grad_norm, pp_mesh=stages))
        self.tell("on_pre_optimizer_step", grad_norm=norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        loss = self._mean_over_ranks(self.state.window_loss)
        self.state.global_step += 1
        self.state.micro_step, self.state.window_loss = 0, 0.0
        self.tell("on_step_end", loss=loss, grad_norm=norm)

    def _plain_forward_backward(self, model: nn.Module, batch: Any, share: float) -> Tensor:
        loss = self.loss_fn(model, batch)
        self.scaler.scale(loss * share).backward()
        return loss.detach()

    def _mean_over_ranks(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()


def _optimizer(config: TrainerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Two groups: matrices, and vectors, which are not decayed. Parameters that are frozen now are in none."""
    wanted = config.optimizer
    parameters = [one for one in model.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in parameters if one.ndim > 1], "weight_decay": wanted.weight_decay},
        {"params": [one for one in parameters if one.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if wanted.name == "sgd":
        return torch.optim.SGD(groups, lr=wanted.lr, momentum=wanted.momentum)
    return torch.optim.AdamW(groups, lr=wanted.lr, betas=wanted.betas, eps=wanted.eps)


def _scheduler(config: TrainerConfig, optimizer: torch.optim.Optimizer) -> LambdaLR | None:
    """None where the learning rate never changes by itself."""
    wanted, steps = config.lr_schedule, config.training.steps
    if wanted.name == "constant" and not wanted.warmup_steps:
        return None

    def factor(step: int) -> float:
        if step < wanted.warmup_steps:
            return (step + 1) / wanted.warmup_steps
        done = (step - wanted.warmup_steps) / max(1, steps - wanted.warmup_steps)
        if wanted.name == "linear":
            return 1 - done
        return (1 + math.cos(math.pi * done)) / 2 if wanted.name == "cosine" else 1.0

    return LambdaLR(optimizer, factor)


def _number(loss: Tensor) -> float:
    return float(loss.full_tensor() if hasattr(loss, "full_tensor") else loss)
