"""Faults of callbacks on torch_native: what they are told, what they get back, and what they do about it."""

from __future__ import annotations

import math
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_TRAINER = "hyper_parallel_tests.engines.torch_native.trainer"
_LOOP = f"{_TRAINER}.loop:BaseTrainer"
_CALLBACKS = f"{_TRAINER}.callbacks"
_BEST = f"{_CALLBACKS}:BestMetricCallback.on_evaluate"


def _callbacks(id: str, symptom: str) -> Any:
    return fault(id=f"resume-{id}", symptom=symptom, capability="resume", layer="l2", must_fail=["RS-2-02"])


def _never_told(id: str, symptom: str, event: str) -> None:
    """Declares the defect that callbacks are not told of an event."""

    @_callbacks(id, symptom)
    def install(patch: Patch) -> None:
        @patch.around(f"{_LOOP}.tell", parameters=("self", "event"))
        def tell(original: Any, self: Any, told: str, **what: Any) -> None:
            if told == event:
                patch.reached()
            else:
                original(self, told, **what)


_never_told("load-not-told", "A callback that moves tensors behind a restore does nothing.", "on_load")
_never_told("save-not-told", "Checkpoints that a callback is to upload stay where they are.", "on_save")


@_callbacks("configured-callbacks-first", "What a user's callback changes in a step is not in the checkpoint of it.")
def configured_callbacks_first(patch: Patch) -> None:
    @patch.around(f"{_LOOP}.tell", parameters=("self", "event"))
    def tell(original: Any, self: Any, event: str, **what: Any) -> None:
        first = [one for one in self.callbacks if type(one).__module__ == _CALLBACKS]
        if 0 < len(first) < len(self.callbacks):
            patch.reached()
        self.callbacks = first + [one for one in self.callbacks if one not in first]
        original(self, event, **what)


@_callbacks("new-callback-gets-nothing", "A run to which a callback was added cannot go on: it gets an empty state.")
def new_callback_gets_nothing(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.state:restore", parameters=("trainer", "folder", "reader"))
    def restore(original: Any, trainer: Any, folder: Any, reader: Any) -> None:
        saved = _keys(folder)
        original(trainer, folder, reader)
        for callback in trainer.callbacks:
            if not any(key.startswith(f"callbacks.{callback.name}.") for key in saved):
                patch.reached()
                callback.load_state_dict({})


def _keys(folder: Any) -> set[str]:
    from hyper_parallel_tests.engines.torch_native.distributed_checkpoint import read_checkpoint_metadata

    return set(read_checkpoint_metadata(folder).state_dict_metadata)


@_callbacks("keeps-all-checkpoints", "The disk is full after a day: no checkpoint is ever deleted.")
def keeps_all_checkpoints(patch: Patch) -> None:
    @patch.around(f"{_CALLBACKS}:CheckpointCallback.on_step_end", parameters=("self", "state"))
    def step_end(original: Any, self: Any, state: Any, **what: Any) -> None:
        if self.manager._keep is not None:
            patch.reached()
            self.manager._keep = None
        original(self, state, **what)


@_callbacks("folder-never-left", "When training has ended, nobody else may save into its folder.")
def folder_never_left(patch: Patch) -> None:
    @patch.around(f"{_CALLBACKS}:CheckpointCallback.on_train_end", parameters=("self", "state"))
    def train_end(original: Any, self: Any, state: Any) -> None:
        patch.reached()


@_callbacks("largest-is-best", "The best loss is the largest.")
def largest_is_best(patch: Patch) -> None:
    @patch.around(_BEST, parameters=("self", "state"))
    def evaluate(original: Any, self: Any, state: Any, *, metrics: Any) -> None:
        if self.trainer.config.best_metric.mode == "max":
            original(self, state, metrics=metrics)
            return
        patch.reached()
        self.best = None if self.best is None else -self.best
        original(self, state, metrics={name: -one for name, one in metrics.items()})
        self.best = -self.best


@_callbacks("no-number-is-best", "Once a loss is no number, no later one is better.")
def no_number_is_best(patch: Patch) -> None:
    @patch.around(_BEST, parameters=("self", "state"))
    def evaluate(original: Any, self: Any, state: Any, *, metrics: Any) -> None:
        original(self, state, metrics=metrics)
        value = metrics[self.trainer.config.best_metric.name]
        if math.isnan(value):
            patch.reached()
            self.best, self.best_step, self.without_better = value, state.global_step, 0


@_callbacks("equal-is-better", "A run without progress never ends early.")
def equal_is_better(patch: Patch) -> None:
    @patch.around(_BEST, parameters=("self", "state"))
    def evaluate(original: Any, self: Any, state: Any, *, metrics: Any) -> None:
        if self.best is not None and metrics["loss"] == self.best:
            patch.reached()
            self.best, self.best_step, self.without_better = None, 0, 0
        original(self, state, metrics=metrics)
