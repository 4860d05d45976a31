"""Faults of checkpoints on torch_native: what a save does to a disk, and says of one that is full."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.checkpoint_manager"
_MANAGER = f"{_OURS}.manager"
_WRITE = f"{_MANAGER}:CheckpointManager._write"
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


@fault(
    id="disk-not-synced",
    symptom="After a power cut the newest checkpoint is complete by its name, and its files are empty.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def not_synced(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}:sync", parameters=("path",))
    def sync(original: Any, path: Any) -> None:
        patch.reached()


@fault(
    id="disk-names-not-synced",
    symptom="After a power cut the newest checkpoint is there under the name of one that is being written.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def names_not_synced(patch: Patch) -> None:
    @patch.around(f"{_OURS}.folder:sync", parameters=("path",))
    def sync(original: Any, path: Any) -> None:
        patch.reached()


@fault(
    id="disk-all-ranks-tidy-up",
    symptom="A save that is tried again fails now and then: a rank that was late has deleted its folder.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def all_ranks_tidy_up(patch: Patch) -> None:
    @patch.around(_WRITE, parameters=_PARAMETERS)
    def write(original: Any, self: Any, what: str, step: int, state: Any, target: Any) -> None:
        try:
            original(self, what, step, state, target)
        except RuntimeError:
            patch.reached()
            self._folder.abandon(target.with_name(f".incomplete-{target.name}"))
            raise
