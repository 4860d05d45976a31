"""Faults of saving that show after many checkpoints of one run only, on torch_native."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from hyper_parallel_tests.faults import Patch, fault

# More checkpoints than a manager of a lower layer's case saves.
_FIRST = 10


def _late_saves(patch: Patch) -> Callable[[Callable[[Any, int, Any], None]], None]:
    """Decorator: what happens when a manager has saved a state at a step, from its tenth checkpoint on."""
    saves: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def put(happens: Callable[[Any, int, Any], None]) -> None:
        @patch.around(
            "hyper_parallel_tests.engines.torch_native.checkpoint_manager.manager:CheckpointManager._save",
            parameters=("self", "step", "state"),
        )
        def save(original: Any, self: Any, step: int, state: Any) -> None:
            original(self, step, state)
            number = saves[self] = saves.get(self, -1) + 1
            if number >= _FIRST:
                patch.reached()
                happens(self, step, state)

    return put


def _fault(id: str, symptom: str, ranks: Any = "all") -> Callable[[Any], Any]:
    return fault(
        id=f"endurance-saves-{id}",
        symptom=symptom,
        capability="checkpoint_manager",
        layer="l4",
        must_fail=["EN-01"],
        ranks=ranks,
    )


@_fault("keep-a-descriptor", "A file of each checkpoint stays open: after a thousand of them nothing can be opened.")
def keep_a_descriptor(patch: Patch) -> None:
    kept: list[int] = []
    patch.at_the_end(lambda: [os.close(one) for one in kept])

    @_late_saves(patch)
    def keep(manager: Any, step: int, state: Any) -> None:
        kept.append(os.dup(1))


@_fault("keep-the-state", "What has been written stays in memory, and each checkpoint takes some more.")
def keep_the_state(patch: Patch) -> None:
    kept: list[Any] = []
    patch.at_the_end(kept.clear)

    @_late_saves(patch)
    def keep(manager: Any, step: int, state: Any) -> None:
        kept.append({name: one.detach().clone() for name, one in state["model"].items()})


@_fault("keep-a-file", "Beside the few checkpoints that are kept a file of each one stays until the disk is full.", [0])
def keep_a_file(patch: Patch) -> None:
    @_late_saves(patch)
    def keep(manager: Any, step: int, state: Any) -> None:
        (manager.path(step).parent / f".written-{step}").touch()
