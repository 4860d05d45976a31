"""Faults of checkpoints on torch_native: saves to a disk that is full or read-only."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_WRITE = "hyper_parallel_tests.engines.torch_native.checkpoint_manager.manager:CheckpointManager._write"
_PARAMETERS = ("self", "what", "step", "state", "target")


@fault(
    id="disk-full-is-no-error",
    symptom="A run has gone on for days without a checkpoint, since the disk was full and nobody was told.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def full_is_no_error(patch: Patch) -> None:
    @patch.around(_WRITE, parameters=_PARAMETERS)
    def write(original: Any, self: Any, *args: Any) -> None:
        try:
            original(self, *args)
        except RuntimeError:
            patch.reached()


@fault(
    id="disk-error-without-its-cause",
    symptom="A run ends with a message that a checkpoint was not saved, and nobody looks at the disk.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def error_without_its_cause(patch: Patch) -> None:
    @patch.around(_WRITE, parameters=_PARAMETERS)
    def write(original: Any, self: Any, what: str, *args: Any) -> None:
        try:
            original(self, what, *args)
        except RuntimeError as error:
            patch.reached()
            raise type(error)(f"{what} was not saved") from None
