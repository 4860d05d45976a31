"""Faults of exports as safetensors on torch_native: what is written for those who read without ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.checkpoint_export"
_TOGETHER = "torch.distributed.checkpoint._consolidate_hf_safetensors"


def _index(patch: Patch, change: Callable[[Path, dict[str, Any]], None]) -> None:
    """The index of an export is changed before anybody reads it."""

    @patch.around(f"{_TOGETHER}:_write_overall_metadata_file", parameters=("output_dir", "output_files_data"))
    def write(original: Any, output_dir: str, output_files_data: Any) -> None:
        original(output_dir, output_files_data)
        patch.reached()
        file = Path(output_dir) / "model.safetensors.index.json"
        content = json.loads(file.read_text())
        change(file.parent, content)
        file.write_text(json.dumps(content))


def _exported(patch: Patch, change: Callable[[torch.Tensor, torch.dtype | None], torch.Tensor]) -> None:
    """Tensors are exported as ``change`` has them."""

    @patch.around(f"{_OURS}:_exported", parameters=("value", "dtype"))
    def exported(original: Any, value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        changed = change(value, dtype)
        if changed is not value:
            patch.reached()
        return original(changed, dtype)


@fault(
    id="export-part-of-a-rank-missing",
    symptom="The second half of each exported matrix is zero.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def part_of_a_rank_missing(patch: Patch) -> None:
    parameters = ("full_tensor_mv", "sub_tensor_bytes", "element_size", "tensor_shape", "sub_tensor_offsets")

    @patch.around(f"{_TOGETHER}:_write_sub_tensor_to_file_optimized", parameters=parameters)
    def write(original: Any, whole: Any, part: Any, size: int, shape: Any, offsets: Any, *args: Any) -> None:
        if any(offsets):
            patch.reached()
            return
        original(whole, part, size, shape, offsets, *args)


@fault(
    id="export-tied-tensors-once",
    symptom="Programs that do not tie weights by themselves miss the output layer of an exported model.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def tied_tensors_once(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_renamed", parameters=("state_dict", "names"))
    def renamed(original: Any, state_dict: Any, names: Any) -> Any:
        once = {id(one): name for name, one in reversed(state_dict.items())}
        if len(once) < len(state_dict):
            patch.reached()
        return original({name: one for name, one in state_dict.items() if once[id(one)] == name}, names)


@fault(
    id="export-limit-of-files-ignored",
    symptom="An exported model is one file, larger than what may be uploaded.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def limit_of_files_ignored(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_numbers_of_files", parameters=("state", "max_file_bytes"))
    def numbers(original: Any, state: Any, max_file_bytes: int | None) -> Any:
        patch.reached()
        return original(state, None)


@fault(
    id="export-index-without-a-tensor",
    symptom="Programs that go by the index leave one layer of an exported model with random weights.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def index_without_a_tensor(patch: Patch) -> None:
    _index(patch, lambda _, content: content["weight_map"].popitem())


@fault(
    id="export-total-size-with-headers",
    symptom="Programs that plan memory by the index find other bytes than it says.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def total_size_with_headers(patch: Patch) -> None:
    def change(folder: Path, content: dict[str, Any]) -> None:
        content["metadata"]["total_size"] = sum(one.stat().st_size for one in folder.glob("*.safetensors"))

    _index(patch, change)


@fault(
    id="export-in-the-order-of-the-storage",
    symptom="Transposed weights are exported as if they were not.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def in_the_order_of_the_storage(patch: Patch) -> None:
    def change(value: torch.Tensor, _: Any) -> torch.Tensor:
        if isinstance(value, DTensor) or value.is_contiguous():
            return value
        return value.as_strided(value.shape, torch.empty(value.shape, device="meta").stride())

    _exported(patch, change)


@fault(
    id="export-dtype-ignored",
    symptom="A model exported for inference is twice as large as asked for.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def dtype_ignored(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_exported", parameters=("value", "dtype"))
    def exported(original: Any, value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        if dtype is not None:
            patch.reached()
        return original(value, None)


@fault(
    id="export-rounds-twice",
    symptom="An exported model differs in last digits from its checkpoint, rounded by others.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def rounds_twice(patch: Patch) -> None:
    _exported(patch, lambda value, dtype: value.half() if dtype is not None and value.is_floating_point() else value)


@fault(
    id="export-names-ignored-on-import",
    symptom="Layers that others name in another way keep their random weights behind an import.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def names_ignored_on_import(patch: Patch) -> None:
    @patch.around(f"{_OURS}:import_safetensors", parameters=("state_dict", "folder", "names"))
    def load(original: Any, state_dict: Any, folder: Any, *, names: Any = None) -> None:
        if names:
            patch.reached()
        original({name: one for name, one in state_dict.items() if name not in (names or {})}, folder)


@fault(
    id="export-second-of-one-name-overwrites",
    symptom="Two layers that a map gives one name are one layer in the exported model.",
    capability="checkpoint_export",
    layer="l2",
    must_fail=["CK-2-04"],
)
def second_of_one_name_overwrites(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_renamed", parameters=("state_dict", "names"))
    def renamed(_: Any, state_dict: Any, names: Any) -> Any:
        found = {(names or {}).get(name, name): one for name, one in state_dict.items()}
        if len(found) < len(state_dict):
            patch.reached()
        return found
