"""Faults of the trainer's loop on torch_native: steps, records and validations that agree with themselves alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from hyper_parallel_tests.faults import Patch, fault

_MODULE = "hyper_parallel_tests.engines.torch_native.trainer.loop"
_LOOP = f"{_MODULE}:BaseTrainer"


def _loop(id: str, symptom: str) -> Any:
    return fault(id=f"resume-{id}", symptom=symptom, capability="resume", layer="l2", must_fail=["RS-2-02"])


@_loop("micro-batches-summed", "With accumulation gradients are as many times too large as there are micro-batches.")
def micro_batches_summed(patch: Patch) -> None:
    @patch.around(f"{_LOOP}._plain_forward_backward", parameters=("self", "model", "batch", "share"))
    def run(original: Any, self: Any, model: Any, batch: Any, share: float) -> Any:
        if share < 1:
            patch.reached()
        return original(self, model, batch, 1.0)


def _rates_of_another_step(shift: int) -> Callable[[Patch], None]:
    """The defect that each step has the learning rate of another one."""

    def install(patch: Patch) -> None:
        def make(_: Any) -> Any:
            def scheduler(optimizer: Any, factor: Callable[[int], float]) -> LambdaLR:
                patch.reached()
                return LambdaLR(optimizer, lambda step: factor(max(0, step + shift)))

            return scheduler

        patch.replace(f"{_MODULE}:LambdaLR", make)

    return install


_loop("rate-of-the-step-before", "The schedule lags a step behind: the first learning rate comes twice.")(
    _rates_of_another_step(-1)
)
_loop("rate-of-the-step-behind", "The schedule is a step ahead: the first learning rate never comes.")(
    _rates_of_another_step(1)
)


@_loop("gradients-not-clipped", "Gradients are never clipped, though their norm is told.")
def gradients_not_clipped(patch: Patch) -> None:
    @patch.around(f"{_MODULE}:clip_grad_norm_", parameters=("parameters", "max_norm"))
    def clip(original: Any, parameters: Any, max_norm: float, **options: Any) -> Any:
        patch.reached()
        return original(parameters, math.inf, **options)


@_loop("vectors-decayed", "Biases and the weights of norms are decayed like matrices.")
def vectors_decayed(patch: Patch) -> None:
    @patch.around(f"{_MODULE}:_optimizer", parameters=("config", "model"))
    def optimizer(original: Any, config: Any, model: Any) -> Any:
        patch.reached()
        found = original(config, model)
        for group in found.param_groups:
            group["weight_decay"] = config.optimizer.weight_decay
        return found


@_loop("losses-of-own-rank", "Records and validations tell the loss of the rank that is asked, and ranks stop apart.")
def losses_of_own_rank(patch: Patch) -> None:
    @patch.around(f"{_LOOP}._mean_over_ranks", parameters=("self", "value"))
    def mean(original: Any, self: Any, value: float) -> float:
        if original(self, value) != value:
            patch.reached()
        return value


@_loop("validation-with-dropout", "The same model is validated twice, and the losses are two.")
def validation_with_dropout(patch: Patch) -> None:
    @patch.around(f"{_LOOP}.evaluate", parameters=("self",))
    def evaluate(original: Any, self: Any) -> Any:
        patch.reached()
        self.model.eval = lambda: self.model
        try:
            return original(self)
        finally:
            del self.model.eval


@_loop("validation-ends-in-training", "What a user has frozen in its evaluation mode trains on behind a validation.")
def validation_ends_in_training(patch: Patch) -> None:
    @patch.around(f"{_LOOP}.evaluate", parameters=("self",))
    def evaluate(original: Any, self: Any) -> Any:
        found = original(self)
        patch.reached()
        self.model.train()
        return found


@_loop("validation-counts-rows-twice", "The validation's loss depends on the number of ranks.")
def validation_counts_rows_twice(patch: Patch) -> None:
    @patch.around(f"{_LOOP}.evaluate", parameters=("self",))
    def evaluate(original: Any, self: Any) -> Any:
        rank = self._data_rank
        self._data_rank = -len(self._validation)
        patch.reached()
        try:
            return original(self)
        finally:
            self._data_rank = rank


@_loop("validation-draws-numbers", "Runs that are validated have other dropout masks than runs that are not.")
def validation_draws_numbers(patch: Patch) -> None:
    @patch.around(f"{_MODULE}:set_random_state", parameters=("state", "tracker"))
    def put(original: Any, state: Any, tracker: Any = None) -> None:
        patch.reached()
