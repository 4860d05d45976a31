"""Port of the checkpoint manager: when to save, what is complete, which one to load, and what to delete."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class CheckpointManager(Protocol):
    """Checkpoints of a training, a folder ``step-<n>`` each, of which only whole ones are ever seen as checkpoints.

    A folder holds what ``save`` of distributed checkpoints writes, and ``manifest.json`` with the version of the
    format, the step, and every file's size and SHA-256. It is written beside, under a name that is no step's, and gets
    its own by one renaming when all of it is on the disk. Before anything is loaded everything is verified.
    """

    CheckpointError: type[Exception]
    """What the manager raises, on every rank with the same words: which checkpoint, which file or rank, what is wrong.

    Behind it what was to be loaded is as it was, and the complete checkpoints are as they were.
    """

    def CheckpointManager(
        self,
        folder: str | Path,
        *,
        interval: int = 1,
        keep_latest_k: int | None = None,
        asynchronous: bool = False,
    ) -> Any:
        """The manager of a folder, a context that ends with ``close``. All ranks call it and its methods together.

        ``save(step, states, *, force=False) -> bool``: saves if the step is a multiple of the interval, or forced;
        whether it did. ``states`` are dicts, nested, of tensors and of values that PyTorch reads without running code,
        or objects with ``state_dict`` and ``load_state_dict``. Complete checkpoints but the newest K are deleted when
        the new one is complete, and never before. A step that is complete is never replaced. Asynchronous: the values
        are those of the call, the rest is done beside the training; the next save waits for it.

        ``wait()``: returns when the asynchronous save is done; raises CheckpointError if it failed.

        ``load(states, step=None) -> int``: the step, the newest complete one unless named, loaded in place and
        exactly: keys, shapes, dtypes. Keys of the checkpoint that nobody asks for are left alone.

        ``steps() -> list[int]``: complete ones, ascending, which every rank sees. ``latest() -> int | None``: the last.
        ``incomplete() -> list[int]``: steps whose save has not ended, or never will.

        ``path(step) -> Path``: of a checkpoint.

        ``export(step, model_state, *, dtype=None) -> Path``: a complete folder ``export-<n>`` of a model alone, that
        is no step and is never deleted; floating-point numbers rounded once to ``dtype``, others as they are.

        ``close()``: waits, and lets others write to the folder, which is one manager's from its first save on.

        Args:
            interval: steps between saves, at least 1.
            keep_latest_k: how many complete checkpoints to keep, at least 1; None for all.

        Raises:
            ValueError: an interval or a number to keep below 1.
        """

    def verify_checkpoint(self, path: str | Path) -> Mapping[str, Any]:
        """The manifest of one checkpoint, by one process alone, when all of its files are as the manifest says.

        Raises:
            CheckpointError: there is no manifest, it has another version, or a file is missing, is a link, or has
                another size or sum. Names the file, what was expected and what was found.
        """
