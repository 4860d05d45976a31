"""Faults of checkpoints on torch_native: what strangers have made runs code, or has other files read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.checkpoint_manager"


@fault(
    id="stranger-links-followed",
    symptom="A checkpoint of strangers has another file of this machine loaded as weights.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def links_followed(patch: Patch) -> None:
    @patch.around(f"{_OURS}.manager:check_file", parameters=("folder", "name", "expected"))
    def check(original: Any, folder: Path, name: str, expected: Any) -> None:
        file = folder / name
        if file.is_symlink():
            patch.reached()
            file = file.resolve()
        original(file.parent, file.name, expected)


@fault(
    id="stranger-paths-outside-accepted",
    symptom="A checkpoint of strangers names a file in somebody's home, and it is loaded.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def paths_outside_accepted(patch: Patch) -> None:
    class AnyName(frozenset):
        def __contains__(self, name: object) -> bool:
            if not super().__contains__(name):
                patch.reached()
            return True

    @patch.around(f"{_OURS}.reading:GuardedReader.__init__", parameters=("self", "path", "files"))
    def init(original: Any, self: Any, path: Path, files: Any) -> None:
        original(self, path, files)
        self._files = AnyName(files)


@fault(
    id="stranger-names-in-the-manifest-accepted",
    symptom="A manifest of strangers has any file of the machine read, and its size told in the error.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def names_in_the_manifest_accepted(patch: Patch) -> None:
    @patch.around(f"{_OURS}.manifest:_check_names", parameters=("file", "names"))
    def check(original: Any, file: Path, names: Any) -> None:
        patch.reached()


@fault(
    id="stranger-code-of-metadata-is-run",
    symptom="Whoever can write to the folder of checkpoints has every machine that loads one.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def code_of_metadata_is_run(patch: Patch) -> None:
    @patch.around(f"{_OURS}.reading:_MetadataUnpickler.find_class", parameters=("self", "module", "name"))
    def find_class(original: Any, self: Any, module: str, name: str) -> Any:
        try:
            return original(self, module, name)
        except RuntimeError:
            patch.reached()
            return pickle.Unpickler.find_class(self, module, name)


@fault(
    id="stranger-code-of-values-is-run",
    symptom="A value in a checkpoint, such as a schedule, runs a stranger's program on every rank.",
    capability="checkpoint_manager",
    layer="l1",
    must_fail=["CK-1-03"],
)
def code_of_values_is_run(patch: Patch) -> None:
    @patch.around(f"{_OURS}.reading:PlainPlanner.load_bytes", parameters=("self", "read_item", "value"))
    def load_bytes(_: Any, self: Any, read_item: Any, value: Any) -> None:
        patch.reached()
        super(type(self), self).load_bytes(read_item, value)
