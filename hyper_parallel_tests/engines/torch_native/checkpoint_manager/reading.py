"""Reading a checkpoint of strangers: no code of theirs runs, no file but the checkpoint's own is opened.

PyTorch's reader unpickles ``.metadata`` and every value that is no tensor, whatever they are, and opens whatever file
the metadata names.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

from hyper_parallel_tests.engines.torch_native.checkpoint_manager.agreement import CheckpointError
from hyper_parallel_tests.engines.torch_native.distributed_checkpoint.planning import StandardLoadPlanner

__all__ = ["GuardedReader", "PlainPlanner"]

# What PyTorch's metadata consists of: data, and nothing that does anything.
_METADATA = {
    "torch.distributed.checkpoint.metadata": {
        "_MEM_FORMAT_ENCODING",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "pathlib": {"PosixPath"},
}


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _METADATA.get(module, ()):
            return super().find_class(module, name)
        raise CheckpointError(f".metadata asks for {module}.{name}, which is no metadata: nothing of it was run")


class GuardedReader(FileSystemReader):
    """Reads files that were named beforehand and no others.

    Args:
        path: the checkpoint's folder.
        files: names of its files.
    """

    def __init__(self, path: Path, files: Collection[str]) -> None:
        super().__init__(path)
        self._files = frozenset(files)

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """The metadata, by an unpickler that knows nothing else."""
        try:
            found = _MetadataUnpickler(io.BytesIO((Path(self.path) / ".metadata").read_bytes())).load()
        except (pickle.UnpicklingError, EOFError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise CheckpointError(f"{self.path}/.metadata is damaged: {type(error).__name__}: {error}") from error
        if not isinstance(found, Metadata):
            raise CheckpointError(f"{self.path}/.metadata is a {type(found).__name__}, expected metadata")
        if found.version != CURRENT_DCP_VERSION:
            raise CheckpointError(
                f"{self.path}/.metadata has format version {found.version!r}, expected {CURRENT_DCP_VERSION!r}: "
                "load it with the version of PyTorch that wrote it"
            )
        for index, place in (found.storage_data or {}).items():
            if place.relative_path not in self._files:
                raise CheckpointError(
                    f"{self.path}/.metadata has {index.fqn} in {place.relative_path!r}, which is no file of it"
                )
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class PlainPlanner(StandardLoadPlanner):
    """Plans as the engine does, and reads values without running code, which PyTorch's planner would."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Puts a value into the state.

        Raises:
            CheckpointError: it is of a class that PyTorch does not read without running code.
        """
        try:
            loaded = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{read_item.dest_index.fqn} is no plain value: nothing of it was run ({str(error).splitlines()[0]})"
            ) from error
        buffer = io.BytesIO()
        torch.save(loaded, buffer)
        buffer.seek(0)
        super().load_bytes(read_item, buffer)
