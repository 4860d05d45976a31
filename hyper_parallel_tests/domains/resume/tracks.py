"""What is seen of runs: each step in full, records and best metric, and how two of them are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.domains.resume.networks import Network
from hyper_parallel_tests.harness import assert_equal, assert_parity
from hyper_parallel_tests.harness.judging.comparison import full
from hyper_parallel_tests.harness.judging.parity import Step, Track

__all__ = ["Ran", "Seen", "assert_same_run", "joined", "recorder"]


@dataclass
class Ran:
    """What is seen of a run, equal on all ranks but for what is each rank's own.

    Attributes:
        track: loss, gradients and parameters of each step.
        facts: for each step learning rates, loss scale, place in the data and rows of the next batch.
        log: records of the callback `logging`.
        best: state of the callback `best_metric`.
    """

    track: Track
    facts: list[dict[str, Tensor]] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)

    def behind(self, steps: int) -> Ran:
        """The run without its first steps."""
        start = self.track.steps[steps - 1].params
        track = replace(self.track, steps=self.track.steps[steps:], start=start)
        log = [record for record in self.log if record["step"] > steps]
        return Ran(track, self.facts[steps:], log, self.best)


def assert_same_run(found: Ran, expected: Ran, tolerance: Any) -> None:
    """Holds a run that was resumed to the one that was not."""
    assert_parity(
        found.track, expected.track, tolerance, own_because="the uninterrupted run is what a resumed one is held to"
    )
    assert_equal(found.facts, expected.facts, what="facts of the steps")
    assert found.best == expected.best
    assert found.log == expected.log


@dataclass
class Seen:
    """What a recorder has written down so far."""

    start: dict[str, Tensor] = field(default_factory=dict)
    grads: dict[str, Tensor] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    facts: list[dict[str, Tensor]] = field(default_factory=list)

    def run_of(self, trainer: Any) -> Ran:
        """The run so far of the trainer that is recorded."""
        best = next((one.state_dict() for one in trainer.callbacks if one.name == "best_metric"), {})
        return Ran(Track(tuple(self.steps), self.start), self.facts, trainer.state.log_history, best)


def recorder(engine: Any, seen: Seen, trainer: Any) -> Any:
    """A callback that writes down each step in full."""

    class Recorder(engine.Callback):
        name = "recorder"

        def on_train_begin(self, state: Any) -> None:
            seen.start = seen.start or _full(self.trainer.model)

        def on_pre_optimizer_step(self, state: Any, *, grad_norm: float | None) -> None:
            named = self.trainer.model.named_parameters()
            seen.grads = {name: full(one.grad) for name, one in named if one.grad is not None}

        def on_step_end(self, state: Any, *, loss: float, grad_norm: float | None) -> None:
            seen.steps.append(Step(loss, _norm(seen.grads), seen.grads, _full(self.trainer.model)))
            loader = self.trainer.train_dataloader
            seen.facts.append(
                {
                    "lr": torch.tensor([float(group["lr"]) for group in self.trainer.optimizer.param_groups]),
                    "scale": torch.tensor(self.trainer.scaler.get_scale()),
                    "place": torch.tensor([state.global_step, state.micro_step, loader.epoch, loader.position]),
                    "rows": torch.tensor(loader.next_rows()),
                }
            )

    return Recorder(trainer)


def _norm(grads: dict[str, Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(one, dtype=torch.float64)) for one in grads.values()))


def _full(model: Network) -> dict[str, Tensor]:
    return {name: full(one) for name, one in model.named_parameters()}


def joined(stages: list[Ran]) -> Ran:
    """One run of the runs of all ranks, of which each stage has seen its own layers."""
    first = stages[0]
    steps = []
    for parts in zip(*(one.track.steps for one in stages), strict=True):
        grads = {name: one for part in parts for name, one in part.grads.items()}
        params = {name: one for part in parts for name, one in part.params.items()}
        steps.append(Step(parts[0].loss, _norm(grads), grads, params))
    start = {name: one for part in stages for name, one in part.track.start.items()}
    return replace(first, track=Track(tuple(steps), start))
