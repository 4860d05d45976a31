"""Ranks that succeed together or fail together, with the same words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

__all__ = ["CheckpointError", "Ranks", "told_clearly"]

T = TypeVar("T")


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, found, trusted or loaded."""


class Ranks:
    """The ranks of a process group, or one alone where there is no group.

    Args:
        group: None for the default one.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.alone = not dist.is_initialized()

    @property
    def rank(self) -> int:
        return 0 if self.alone else dist.get_rank(self.group)

    @property
    def size(self) -> int:
        return 1 if self.alone else dist.get_world_size(self.group)

    def gather(self, value: T) -> list[T]:
        """Every rank's value."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def together(self, function: Callable[[], T]) -> list[T]:
        """What a function gives on each rank; an error of any of them is an error of all."""
        value, error = None, ""
        try:
            value = function()
        except Exception as caught:
            error = str(caught) if isinstance(caught, CheckpointError) else f"{type(caught).__name__}: {caught}"
        found = self.gather((value, error))
        errors = {rank: text for rank, (_, text) in enumerate(found) if text}
        if errors:
            raise CheckpointError("; ".join(f"rank {rank}: {text}" for rank, text in errors.items()))
        return [value for value, _ in found]

    def first(self, function: Callable[[], T]) -> T:
        """What a function gives on rank 0, which alone calls it, on all of them."""
        return self.together(lambda: function() if self.rank == 0 else None)[0]


@contextmanager
def told_clearly(what: str) -> Iterator[None]:
    """Context whose errors are CheckpointErrors that begin with what was being done."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{what}: {error}") from error
    except CheckpointException as error:
        told = "; ".join(f"rank {rank}: {type(one).__name__}: {one}" for rank, (one, _) in error.failures.items())
        raise CheckpointError(f"{what}: {told}") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{what}: {type(error).__name__}: {error}") from error
