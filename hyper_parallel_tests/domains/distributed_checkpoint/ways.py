"""The two ways to save and load: by the manager, and plainly. What may go wrong with the files goes wrong with both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

__all__ = ["WAYS", "Managed", "Plain", "each_way"]


class Plain:
    """A distributed checkpoint a folder, of which the user chooses the names."""

    def __init__(self, engine: Any, folder: Path) -> None:
        self._engine, self._folder = engine, folder
        self.error: type[BaseException] = engine.CheckpointException

    def path(self, step: int) -> Path:
        return self._folder / f"step-{step}"

    def save(self, step: int, state: dict[str, Any]) -> None:
        self._engine.save(state, checkpoint_id=self.path(step))

    def load(self, step: int, state: dict[str, Any]) -> None:
        self._engine.load(state, checkpoint_id=self.path(step))

    def close(self) -> None:
        """Nothing is open."""


class Managed:
    """The manager's checkpoints."""

    def __init__(self, engine: Any, folder: Path) -> None:
        self.manager = engine.CheckpointManager(folder)
        self.error: type[BaseException] = engine.CheckpointError

    def path(self, step: int) -> Path:
        return self.manager.path(step)

    def save(self, step: int, state: dict[str, Any]) -> None:
        self.manager.save(step, state)

    def load(self, step: int, state: dict[str, Any]) -> None:
        self.manager.load(state, step)

    def close(self) -> None:
        self.manager.close()


WAYS: dict[str, Callable[[Any, Path], Plain | Managed]] = {"dcp": Plain, "manager": Managed}

each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
