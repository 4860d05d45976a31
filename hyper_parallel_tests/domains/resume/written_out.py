"""The loop that a trainer stands for, written out in plain PyTorch on one card."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.resume.networks import loss_of, network, rows
from hyper_parallel_tests.harness import train_baseline
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.seeding import Batch

__all__ = ["rate_of", "written_out"]


def rate_of(config: Any, step: int) -> float:
    """The learning rate of a step: up in equal parts to the full one, then level, in a line or half a cosine to 0."""
    wanted, last = config.lr_schedule, config.training.steps
    if step < wanted.warmup_steps:
        return config.optimizer.lr * (step + 1) / wanted.warmup_steps
    left = (last - step) / (last - wanted.warmup_steps)
    shape = {"constant": 1.0, "linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2}
    return config.optimizer.lr * shape[wanted.name]


def written_out(config: Any, numbers: Sequence[Sequence[Sequence[int]]]) -> Track:
    """The run of a configuration on whole micro-batches.

    Args:
        numbers: for each step, for each micro-batch, the rows of all ranks.
    """
    data = rows()
    windows = [[_batch(data, micro_batch) for micro_batch in window] for window in numbers]
    rates = [rate_of(config, step) for step in range(len(windows))]
    model = network(0)
    optimizer = partial(_optimizer, [one.ndim for one in model.parameters()], config.optimizer, rates)
    norm = config.training.max_grad_norm
    return train_baseline(
        model, windows, _loss_of_window, optimizer=optimizer, before_update=partial(_clipped, norm) if norm else None
    )


def _batch(data: Any, numbers: Sequence[int]) -> Batch:
    return Batch(*(torch.stack(part) for part in zip(*(data[number] for number in numbers), strict=True)))


def _loss_of_window(model: nn.Module, window: Sequence[Any]) -> Tensor:
    return torch.stack([loss_of(model, micro_batch) for micro_batch in window]).mean()


def _clipped(norm: float, model: nn.Module) -> None:
    """Clips; the norm that is recorded is that of what is left."""
    nn.utils.clip_grad_norm_(model.parameters(), norm)


def _optimizer(
    dims: Sequence[int], wanted: Any, rates: Sequence[float], parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """Decays matrices alone, and has a rate for each step."""
    named = list(zip(dims, parameters, strict=True))
    groups = [
        {"params": [one for ndim, one in named if ndim > 1], "weight_decay": wanted.weight_decay},
        {"params": [one for ndim, one in named if ndim == 1], "weight_decay": 0.0},
    ]
    make: Callable[..., torch.optim.Optimizer] = {
        "adamw": partial(torch.optim.AdamW, betas=wanted.betas, eps=wanted.eps),
        "sgd": partial(torch.optim.SGD, momentum=wanted.momentum),
    }[wanted.name]
    optimizer, ahead = make(groups, lr=wanted.lr), iter(rates)

    def set_rate(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        rate = next(ahead)
        for group in optimizer.param_groups:
            group["lr"] = rate

    optimizer.register_step_pre_hook(set_rate)
    return optimizer
