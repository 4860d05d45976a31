"""Loads, the metadata beside the data, and files whose writing fails with its cause."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import checkpoint
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, LoadPlanner, Metadata
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, FileSystem

from hyper_parallel_tests.engines.torch_native.distributed_checkpoint.planning import StandardLoadPlanner

_METADATA = ".metadata"


class Reader(FileSystemReader):
    """PyTorch's, which reads checkpoints of its own format version and no others."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """PyTorch's, of a known version. Raises ValueError for another one."""
        metadata = super().read_metadata(*args, **kwargs)
        if metadata.version != CURRENT_DCP_VERSION:
            raise ValueError(
                f"{self.path} has format version {metadata.version}, but this version of PyTorch knows "
                f"{CURRENT_DCP_VERSION} alone: load it with the version that wrote it"
            )
        return metadata


class Writer(FileSystemWriter):
    """PyTorch's, which tells the operating system's error where a file cannot be written."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self.fs = _TellingFileSystem()


class _TellingFileSystem(FileSystem):
    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        try:
            with super().create_stream(path, mode) as stream:
                yield stream
        except RuntimeError as error:
            # torch.save, on its way out of a failed write, finds its own file at a wrong position and tells only that.
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__
            raise cause or error from None


def load(state_dict: dict[str, Any], *, checkpoint_id: Path | str, planner: LoadPlanner | None = None) -> None:
    """See the port."""
    checkpoint.load(state_dict, storage_reader=Reader(checkpoint_id), planner=planner or StandardLoadPlanner())


def read_checkpoint_metadata(checkpoint_id: Path | str) -> Metadata:
    """See the port."""
    return Reader(checkpoint_id).read_metadata()


def write_checkpoint_metadata(metadata: Metadata, checkpoint_id: Path | str) -> None:
    """See the port."""
    (Path(checkpoint_id) / _METADATA).write_bytes(pickle.dumps(metadata))
