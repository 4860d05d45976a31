"""Faults of checkpoints on torch_native: what a rank that is killed in a save leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.checkpoint_manager"
_FOLDER = f"{_OURS}.folder:CheckpointFolder"


def _written_in_place(patch: Patch) -> None:
    """The folder has the name of its step while it is written."""

    @patch.around(f"{_FOLDER}.begin", parameters=("self", "target"))
    def begin(original: Any, self: Any, target: Path) -> Path:
        return original(self, target).rename(target)


@fault(
    id="kill-half-checkpoint-counts",
    symptom="After a node was lost in a save no restart succeeds: each takes the folder that is half written.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def half_checkpoint_counts(patch: Patch) -> None:
    _written_in_place(patch)

    @patch.around(f"{_FOLDER}.complete", parameters=("self",))
    def complete(original: Any, self: Any) -> set[int]:
        found = {step for step, _ in self._named("")}
        if found != original(self):
            patch.reached()
        return found


@fault(
    id="kill-manifest-written-first",
    symptom="A checkpoint that says it is complete has files missing, since its manifest is older than they are.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def manifest_written_first(patch: Patch) -> None:
    from hyper_parallel_tests.engines.torch_native.checkpoint_manager.manifest import MANIFEST, write_manifest

    _written_in_place(patch)

    @patch.around(f"{_FOLDER}.begin", parameters=("self", "target"))
    def begin(original: Any, self: Any, target: Path) -> Path:
        patch.reached()
        place = original(self, target)
        write_manifest(place, int(target.name.removeprefix("step-")), {})
        return place

    @patch.around(f"{_OURS}.manager:_entries", parameters=("folder", "rank", "size"))
    def entries(original: Any, folder: Path, rank: int, size: int) -> Any:
        return {name: entry for name, entry in original(folder, rank, size).items() if name != MANIFEST}


@fault(
    id="kill-deleted-file-by-file",
    symptom="A run that was stopped while it tidied up has a checkpoint that looks complete and does not load.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def deleted_file_by_file(patch: Patch) -> None:
    @patch.around(f"{_FOLDER}.prune", parameters=("self", "keep"))
    def prune(original: Any, self: Any, keep: int) -> None:
        for step in sorted(self.complete())[:-keep]:
            patch.reached()
            for file in sorted(self.path(step).iterdir()):
                file.unlink()
            self.path(step).rmdir()
