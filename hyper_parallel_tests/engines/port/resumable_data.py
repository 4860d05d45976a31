"""Port of resumable data: batches whose place in the data is state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch.utils.data import Dataset


class StatefulDataLoaderMembers(Protocol):
    """Batches of one rank, epoch after epoch. Those of all ranks are a piece of its order, in order of ranks."""

    epoch: int
    """Of the next batch, from 0."""
    position: int
    """Rows of the epoch that all ranks together have been given."""

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of this epoch; the next iteration goes on with the next epoch."""

    def next_batch(self) -> Any:
        """The next batch, of the next epoch where this one has none left, and moves on by it.

        Returns:
            samples stacked as ``torch.utils.data.default_collate`` does it, (batch_size, ...).
        """

    def next_rows(self) -> list[int]:
        """Numbers of the rows that the next batch has; moves nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that later batches depend on: numbers and booleans, the same on all ranks."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where ``state_dict`` was taken, with its seed. Batch size and ranks may be others than there.

        Raises:
            ValueError: something is missing, the data has another number of rows, or no such position. Nothing has
                changed then.
        """


class ResumableData(Protocol):
    """Loaders without worker processes."""

    def StatefulDataLoader(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        rank: int = 0,
        size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> StatefulDataLoaderMembers:
        """The loader of one rank. Name: torchdata's.

        Args:
            dataset: has a length, and samples by number.
            batch_size: rows of a rank's batch.
            rank, size: of the ranks that share the data; others, such as those of one tensor parallel group, give the
                same here and get the same rows.
            seed: of the order of rows, which is another one each epoch and depends on nothing else.
            shuffle: False for the order of the data.
            drop_last: rows at the end of an epoch that fill no batch of all ranks are left out. If not, its first rows
                fill them up, so that all ranks have batches of one size.

        Raises:
            ValueError: ``batch_size`` below 1, ``rank`` not below ``size``, or data that fill no batch.
        """
