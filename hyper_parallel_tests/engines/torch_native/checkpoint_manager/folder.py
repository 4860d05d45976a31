"""Names in a manager's folder: which is a whole checkpoint, which is being written, and whose folder it is."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hyper_parallel_tests.engines.torch_native.checkpoint_manager.agreement import CheckpointError
from hyper_parallel_tests.engines.torch_native.checkpoint_manager.manifest import MANIFEST, sync, write_manifest
from hyper_parallel_tests.engines.torch_native.checkpoint_manager.reading import GuardedReader

__all__ = ["CheckpointFolder"]

_STEP = re.compile(r"step-(0|[1-9][0-9]*)", re.ASCII)
_WRITING, _DELETING, _LOCK = ".incomplete-", ".deleted-", ".writer"


class CheckpointFolder:
    """The folder as one rank sees it; rank 0 alone changes it.

    Args:
        root: made at the first save.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: int | None = None

    def path(self, step: int) -> Path:
        """Of a checkpoint."""
        return self.root / f"step-{step}"

    def export_path(self, step: int) -> Path:
        """Of a model alone."""
        return self.root / f"export-{step}"

    def complete(self) -> set[int]:
        """Steps whose folder has a manifest, which is written last."""
        return {step for step, folder in self._named("") if (folder / MANIFEST).is_file()}

    def incomplete(self) -> set[int]:
        """Steps that have been begun and have no whole checkpoint."""
        begun = {step for prefix in ("", _WRITING) for step, _ in self._named(prefix)}
        return begun - self.complete()

    def begin(self, target: Path) -> Path:
        """An empty folder to write to, beside the target.

        Raises:
            CheckpointError: another manager writes here, or the target is there already.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        if target.exists():
            raise CheckpointError(f"{target} is there already, and a checkpoint is never replaced: delete it first")
        # Nobody else writes here, so what is unfinished is of a process that has ended.
        for left in list(self.root.iterdir()):
            if left.name.startswith((_WRITING, _DELETING)):
                shutil.rmtree(left)
        beside = self.root / f"{_WRITING}{target.name}"
        beside.mkdir()
        return beside

    def commit(self, beside: Path, target: Path, step: int, files: Mapping[str, Any]) -> None:
        """Makes a checkpoint of a folder of which everything is written.

        Raises:
            CheckpointError: a file that the metadata names is not there.
        """
        # Reading it tells whether what it names is there.
        GuardedReader(beside, files).read_metadata()
        write_manifest(beside, step, files)
        beside.rename(target)
        sync(self.root)

    def abandon(self, beside: Path) -> None:
        """Makes room of what will not be a checkpoint, as far as that is possible."""
        with suppress(OSError):
            shutil.rmtree(beside)

    def prune(self, keep: int) -> None:
        """Deletes complete checkpoints but the newest."""
        for step in sorted(self.complete())[:-keep]:
            # A folder that is half deleted must not look like a checkpoint.
            leaving = self.root / f"{_DELETING}step-{step}"
            self.path(step).rename(leaving)
            shutil.rmtree(leaving)

    def unlock(self) -> None:
        """Lets others write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_lock(self) -> None:
        """The kernel gives it back when this process ends, however it does."""
        if self._lock is not None:
            return
        descriptor = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 100).decode(errors="replace")
            os.close(descriptor)
            raise CheckpointError(
                f"{self.root} is written by another manager ({owner or 'unknown'}): close it, or choose another folder"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} of {os.uname().nodename}".encode())
        self._lock = descriptor

    def _named(self, prefix: str) -> list[tuple[int, Path]]:
        if not self.root.is_dir():
            return []
        found = []
        for folder in self.root.iterdir():
            name = folder.name.removeprefix(prefix) if folder.name.startswith(prefix) else ""
            match = _STEP.fullmatch(name)
            if match and folder.is_dir() and not folder.is_symlink():
                found.append((int(match[1]), folder))
        return found
