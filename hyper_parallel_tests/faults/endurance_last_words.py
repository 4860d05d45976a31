"""Faults of the checkpoint that a run leaves behind when it has to end, on torch_native."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_LAST_WORDS = "hyper_parallel_tests.engines.torch_native.recovery.last_words"


def _fault(id: str, symptom: str) -> Callable[[Any], Any]:
    return fault(id=f"endurance-{id}", symptom=symptom, capability="recovery", layer="l4", must_fail=["EN-06"])


@_fault("last-words-without-optimizer", "A run that was asked to end goes on with the moments of its first step.")
def last_words_without_optimizer(patch: Patch) -> None:
    @patch.around(f"{_LAST_WORDS}:_copied", parameters=("state",))
    def copied(original: Any, state: dict[str, Any]) -> dict[str, Any]:
        patch.reached()
        return original({key: one for key, one in state.items() if not key.startswith("optimizer.state.")})


@_fault(
    "last-words-of-two-steps", "The checkpoint that a failed run has left has parts of one step and parts of the next."
)
def last_words_of_two_steps(patch: Patch) -> None:
    @patch.around(f"{_LAST_WORDS}:LastWords._save", parameters=("self", "step"))
    def save(original: Any, self: Any, step: int) -> None:
        newest = max(self._copies)
        if newest != step:
            patch.reached()
            self._copies[step] = self._copies[newest]
        original(self, step)


@_fault("last-words-unsaid", "A run that ends at one of its own checkpoints says that it has saved none.")
def last_words_unsaid(patch: Patch) -> None:
    @patch.around(f"{_LAST_WORDS}:LastWords._save", parameters=("self", "step"))
    def save(original: Any, self: Any, step: int) -> None:
        found = step in self._manager.steps()
        original(self, step)
        if found:
            patch.reached()
            self.saved = None


@_fault("last-words-keep-the-signal", "What runs behind the training cannot be ended by SIGTERM any more.")
def last_words_keep_the_signal(patch: Patch) -> None:
    @patch.around(f"{_LAST_WORDS}:LastWords.__exit__", parameters=("self", "kind", "error", "traceback"))
    def leave(original: Any, self: Any, *args: Any) -> None:
        original(self, *args)
        for number in self._signals:
            patch.reached()
            signal.signal(number, self._hear)


@_fault("last-words-of-no-step", "A run that fails in its first step leaves a checkpoint of nothing.")
def last_words_of_no_step(patch: Patch) -> None:
    @patch.around(f"{_LAST_WORDS}:LastWords._speak", parameters=("self",))
    def speak(original: Any, self: Any) -> str:
        if not self._copies:
            patch.reached()
            self._copies[0] = {"progress.global_step": 0}
        return original(self)
