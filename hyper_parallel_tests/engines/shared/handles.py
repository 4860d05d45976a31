"""Handles of operations under way that need something done at the end."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.distributed import Work


class Handles:
    """Several pieces of work as one handle; ``finish`` runs once, after the last of them."""

    def __init__(self, works: list[Work], finish: Callable[[], None]) -> None:
        self._works, self._finish = works, finish
        self._finished = False

    def wait(self) -> None:
        """Waits for all the work, in the order of its start."""
        for work in self._works:
            work.wait()
        if not self._finished:
            self._finish()
            self._finished = True

    def is_completed(self) -> bool:
        """Whether ``wait`` would return at once."""
        return all(work.is_completed() for work in self._works)

    def settle(self, async_op: bool) -> Handles | None:
        """What a collective returns: itself, or after waiting None."""
        return self if async_op else self.wait()


def copy_back(dense: list[Tensor], outputs: list[Tensor]) -> Callable[[], None]:
    """A finish that copies dense stand-ins to the outputs that they stand in for."""

    def finish() -> None:
        for source, output in zip(dense, outputs, strict=True):
            if source is not output:
                output.copy_(source)

    return finish
