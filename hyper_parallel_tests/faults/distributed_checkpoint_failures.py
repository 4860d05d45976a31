"""Faults of checkpoints on torch_native: files that are damaged or mixed up, and are believed all the same."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.distributed import checkpoint

from hyper_parallel_tests.faults import Patch, fault

_ENGINE = "hyper_parallel_tests.engines.torch_native"
_OURS = f"{_ENGINE}.checkpoint_manager"
_CHECK_FILE = f"{_OURS}.manager:check_file"
_FILE = ("folder", "name", "expected")


@fault(
    id="damage-checksum-not-verified",
    symptom="A bit that a disk has lost is a weight of 1e30 after the restart.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def checksum_not_verified(patch: Patch) -> None:
    @patch.around(_CHECK_FILE, parameters=_FILE)
    def check(original: Any, folder: Path, name: str, expected: Any) -> None:
        file = folder / name
        if not file.is_file() or file.is_symlink() or file.stat().st_size != expected["bytes"]:
            original(folder, name, expected)
        patch.reached()


@fault(
    id="damage-size-not-verified",
    symptom="A file that somebody has appended to is taken for the one that was saved.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def size_not_verified(patch: Patch) -> None:
    @patch.around(_CHECK_FILE, parameters=_FILE)
    def check(original: Any, folder: Path, name: str, expected: Any) -> None:
        with suppress(OSError):
            content = (folder / name).read_bytes()
            if hashlib.sha256(content[: expected["bytes"]]).hexdigest() == expected["sha256"]:
                patch.reached()
                return
        original(folder, name, expected)


def _any_version(patch: Patch, module: str) -> None:
    def make(original: str) -> Any:
        class AnyVersion(str):
            def __ne__(self, other: object) -> bool:
                if other != original:
                    patch.reached()
                return False

            __hash__ = str.__hash__

        return AnyVersion(original)

    patch.replace(f"{module}:CURRENT_DCP_VERSION", make)


@fault(
    id="damage-version-not-looked-at",
    symptom="A checkpoint of a later version loads, with what has changed since left out.",
    capability="distributed_checkpoint",
    layer="l1",
    must_fail=["CK-1-03"],
)
def version_not_looked_at(patch: Patch) -> None:
    _any_version(patch, f"{_ENGINE}.distributed_checkpoint.storage")


@fault(
    id="damage-version-not-looked-at-by-the-manager",
    symptom="The manager loads what a plain load refuses, since its version is unknown.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def version_not_looked_at_by_the_manager(patch: Patch) -> None:
    _any_version(patch, f"{_OURS}.reading")


@fault(
    id="damage-filled-before-it-is-verified",
    symptom="A load that failed has left half of another checkpoint in the model, and the run goes on with it.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def filled_before_it_is_verified(patch: Patch) -> None:
    @patch.around(f"{_OURS}.manager:CheckpointManager.load", parameters=("self", "states", "step"))
    def load(original: Any, self: Any, states: Any, step: int | None = None) -> int:
        patch.reached()
        with suppress(checkpoint.CheckpointException):
            checkpoint.load(states, checkpoint_id=self.path(step))
        return original(self, states, step)


@fault(
    id="damage-told-to-the-finder-alone",
    symptom="One rank ends with an error, and the others wait for it till the job's limit.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
    watchdog=5,
)
def told_to_the_finder_alone(patch: Patch) -> None:
    @patch.around(f"{_OURS}.agreement:Ranks.together", parameters=("self", "function"))
    def together(original: Any, self: Any, function: Any) -> Any:
        value, error = None, None
        try:
            value = function()
        except Exception as caught:
            error = caught
        found = self.gather(value)
        if error is not None:
            patch.reached()
            raise error
        return found


@fault(
    id="damage-step-under-the-name-of-another",
    symptom="A folder that was renamed by hand loads as a step that it is not, and data is read twice.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def step_under_the_name_of_another(patch: Patch) -> None:
    @patch.around(f"{_OURS}.manager:read_manifest", parameters=("folder", "step"))
    def read(original: Any, folder: Path, step: int | None = None) -> Any:
        patch.reached()
        return original(folder)


@fault(
    id="damage-second-writer-let-in",
    symptom="Two runs by mistake in one folder delete each other's checkpoints.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def second_writer_let_in(patch: Patch) -> None:
    @patch.around(f"{_OURS}.folder:CheckpointFolder._take_lock", parameters=("self",))
    def take_lock(_: Any, self: Any) -> None:
        patch.reached()
