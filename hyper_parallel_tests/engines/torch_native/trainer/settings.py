"""What a training run is configured with: each setting with its default, what it means, and what it may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Section", "TrainerConfig"]

Rule = Callable[[Any], str]
"""Says what a value of the right type must be, where it is not that, else nothing."""


def setting(default: Any, says: str, *rules: Rule) -> Any:
    """A setting of a section."""
    return field(default=default, metadata={"says": says, "rules": rules})


def section(kind: type) -> Any:
    """A section of the configuration, with its defaults."""
    return field(default_factory=kind)


def at_least(least: float) -> Rule:
    return lambda value: "" if value >= least else f"expected at least {least}"


def above(bound: float) -> Rule:
    return lambda value: "" if value > bound else f"expected more than {bound}"


def finite(value: float) -> str:
    return "" if math.isfinite(value) else "expected a finite number"


def share(value: float) -> str:
    return "" if 0 <= value < 1 else "expected a number from 0 to below 1"


def degree(value: int) -> str:
    return "" if value >= 1 or value == -1 else "expected a positive number, or -1 for what is left"


def one_of(*names: str) -> Rule:
    return lambda value: "" if value in names else f"expected one of {', '.join(names)}"


def shares(values: tuple[float, ...]) -> str:
    ok = len(values) == 2 and all(0 <= one < 1 for one in values)
    return "" if ok else "expected two numbers from 0 to below 1"


def known_callbacks(names: tuple[str, ...]) -> str:
    known = ("logging", "validation", "best_metric", "checkpoint")
    wrong = [one for one in names if one not in known]
    if wrong:
        return f"expected some of {', '.join(known)}, found {', '.join(wrong)}"
    return "" if len(set(names)) == len(names) else "expected each of them once"


class Section:
    """Base of all sections, to tell them from settings."""


@dataclass(frozen=True)
class Training(Section):
    steps: int = setting(100, "optimizer steps of the whole run", at_least(1))
    seed: int = setting(0, "of the random numbers of a run that starts anew", at_least(0))
    global_batch_size: int = setting(8, "rows of one optimizer step, over all ranks and micro-batches", at_least(1))
    gradient_accumulation_steps: int = setting(1, "micro-batches of one optimizer step", at_least(1))
    max_grad_norm: float = setting(0.0, "global norm that gradients are clipped to; 0 clips none", finite, at_least(0))


@dataclass(frozen=True)
class Parallel(Section):
    pp: int = setting(1, "pipeline stages", degree)
    dp: int = setting(1, "replicas of the model", degree)
    fsdp: int = setting(-1, "ranks that the parameters of a replica are divided over", degree)
    cp: int = setting(1, "ranks that a sequence is divided over", degree)
    ep: int = setting(1, "ranks that experts are divided over", degree)
    tp: int = setting(1, "ranks that a layer is divided over", degree)


@dataclass(frozen=True)
class Optimizer(Section):
    name: str = setting("adamw", "adamw or sgd", one_of("adamw", "sgd"))
    lr: float = setting(1e-3, "the full learning rate", finite, at_least(0))
    weight_decay: float = setting(0.01, "of matrices; vectors have none", finite, at_least(0))
    betas: tuple[float, ...] = setting((0.9, 0.999), "decay rates of AdamW's two moments", shares)
    eps: float = setting(1e-8, "added to AdamW's denominator", finite, above(0))
    momentum: float = setting(0.9, "of SGD", share)


@dataclass(frozen=True)
class LrSchedule(Section):
    name: str = setting(
        "constant",
        "after the warm-up: constant, or falling to 0 at the end of the run, linear or as half a cosine",
        one_of("constant", "linear", "cosine"),
    )
    warmup_steps: int = setting(0, "steps in which the learning rate rises in equal parts to the full one", at_least(0))


@dataclass(frozen=True)
class LossScale(Section):
    enabled: bool = setting(False, "whether the loss is scaled, as fp16 needs")
    init_scale: float = setting(2.0**16, "the first scale", finite, above(0))
    growth_interval: int = setting(2000, "steps without overflow after which the scale doubles", at_least(1))


@dataclass(frozen=True)
class Data(Section):
    seed: int = setting(0, "of the order of rows", at_least(0))
    shuffle: bool = setting(True, "whether each epoch has an order of its own")
    drop_last: bool = setting(
        False, "whether rows that fill no batch are left out of an epoch; if not, its first rows fill it"
    )


@dataclass(frozen=True)
class Checkpoint(Section):
    folder: str | None = setting(None, "where checkpoints are; the callback needs it")
    interval: int = setting(0, "steps from one to the next; 0 saves none", at_least(0))
    keep_last: int = setting(2, "how many are kept; 0 keeps all", at_least(0))


@dataclass(frozen=True)
class Interval(Section):
    interval: int = setting(1, "steps from one to the next", at_least(1))


@dataclass(frozen=True)
class BestMetric(Section):
    name: str = setting("loss", "the metric of validation that is compared")
    mode: str = setting("min", "min or max, which of two values is better", one_of("min", "max"))
    patience: int = setting(0, "validations without a better one after which training ends; 0 never", at_least(0))


@dataclass(frozen=True)
class TrainerConfig(Section):
    """The whole configuration; frozen, compares by value."""

    training: Training = section(Training)
    parallel: Parallel = section(Parallel)
    optimizer: Optimizer = section(Optimizer)
    lr_schedule: LrSchedule = section(LrSchedule)
    loss_scale: LossScale = section(LossScale)
    data: Data = section(Data)
    checkpoint: Checkpoint = section(Checkpoint)
    logging: Interval = section(Interval)
    validation: Interval = section(Interval)
    best_metric: BestMetric = section(BestMetric)
    callbacks: tuple[str, ...] = setting(
        (),
        "what is called besides training: logging, validation, best_metric, checkpoint; always in this order",
        known_callbacks,
    )
