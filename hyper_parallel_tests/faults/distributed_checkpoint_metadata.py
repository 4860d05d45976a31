"""Faults of distributed checkpoints on torch_native: what a checkpoint says of itself."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch.distributed.checkpoint import BytesStorageMetadata, FileSystemReader, Metadata, filesystem

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.distributed_checkpoint"
_PLANNER = "torch.distributed.checkpoint.default_planner"


@fault(
    id="checkpoint-any-version",
    symptom="A checkpoint of a later format is read as if it were of this one.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-02"],
)
def any_version(patch: Patch) -> None:
    @patch.around(f"{_OURS}.storage:Reader.read_metadata", parameters=("self",))
    def read_metadata(_: Any, self: Any, *args: Any, **options: Any) -> Any:
        patch.reached()
        return FileSystemReader.read_metadata(self, *args, **options)


@fault(
    id="checkpoint-version-in-its-first-number",
    symptom="A checkpoint that a little later version wrote is read as if it were of this one.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-02"],
)
def version_in_its_first_number(patch: Patch) -> None:
    @patch.around(f"{_OURS}.storage:Reader.read_metadata", parameters=("self",))
    def read_metadata(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        found = FileSystemReader.read_metadata(self, *args, **options)
        if (found.version or "").startswith("1."):
            patch.reached()
            return found
        return original(self, *args, **options)


@fault(
    id="checkpoint-version-not-written",
    symptom="No two checkpoints can be told apart by their format.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-02"],
)
def version_not_written(patch: Patch) -> None:
    any_version(patch)

    @patch.around("torch.distributed.checkpoint.filesystem:FileSystemWriter.finish", parameters=("self", "metadata"))
    def finish(original: Any, self: Any, metadata: Any, results: Any) -> None:
        patch.reached()
        with mock.patch.object(filesystem, "CURRENT_DCP_VERSION", None):
            original(self, metadata, results)


@fault(
    id="checkpoint-metadata-of-default-dtype",
    symptom="Tools that read the metadata alone take every tensor for fp32.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-02"],
)
def metadata_of_default_dtype(patch: Patch) -> None:
    @patch.around("torch.distributed.checkpoint.metadata:TensorProperties.create_from_tensor", parameters=("tensor",))
    def create(original: Any, tensor: Any) -> Any:
        properties = original(tensor)
        if properties.dtype != torch.float32:
            patch.reached()
        properties.dtype = torch.float32
        return properties


@fault(
    id="checkpoint-metadata-without-objects",
    symptom="The step and the schedule are in the checkpoint, and nobody can find them.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-02"],
)
def metadata_without_objects(patch: Patch) -> None:
    @patch.around(f"{_PLANNER}:create_default_global_save_plan")
    def global_plan(original: Any, *args: Any, **options: Any) -> Any:
        plans, metadata = original(*args, **options)
        for key, one in [*metadata.state_dict_metadata.items()]:
            if isinstance(one, BytesStorageMetadata):
                patch.reached()
                del metadata.state_dict_metadata[key]
        return plans, metadata


@fault(
    id="checkpoint-metadata-of-one-part",
    symptom="The metadata of a divided tensor tell of its first part alone.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-02"],
)
def metadata_of_one_part(patch: Patch) -> None:
    @patch.around(f"{_OURS}:write_checkpoint_metadata", parameters=("metadata", "checkpoint_id"))
    def write(original: Any, metadata: Any, checkpoint_id: Any) -> None:
        for one in metadata.state_dict_metadata.values():
            if len(getattr(one, "chunks", ())) > 1:
                patch.reached()
                del one.chunks[1:]
        original(metadata, checkpoint_id)


@fault(
    id="checkpoint-folder-without-metadata-is-empty",
    symptom="A save that was interrupted looks like a checkpoint in which every key is missing.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-02"],
)
def folder_without_metadata_is_empty(patch: Patch) -> None:
    @patch.around(f"{_OURS}.storage:Reader.read_metadata", parameters=("self",))
    def read_metadata(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        try:
            return original(self, *args, **options)
        except FileNotFoundError:
            patch.reached()
            return Metadata({}, storage_data={})
