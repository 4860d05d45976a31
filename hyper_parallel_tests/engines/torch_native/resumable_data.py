"""Resumable data of torch_native: a plain reference, since PyTorch's sampler does not know how far it has been read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

__all__ = ["StatefulDataLoader"]


class StatefulDataLoader:
    """See the port. Position is counted in rows of the whole epoch, so that it holds for any number of ranks."""

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        rank: int = 0,
        size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"a batch has at least one row, got batch_size={batch_size}")
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is none of {size} ranks: expected 0 to {size - 1}")
        rows = len(dataset)
        if rows < (batch_size * size if drop_last else 1):
            raise ValueError(f"{rows} rows fill no batch of {batch_size} for each of {size} ranks")
        self.epoch = 0
        self.position = 0
        self._dataset, self._rows = dataset, rows
        self._batch_size, self._rank, self._size = batch_size, rank, size
        self._seed, self._shuffle, self._drop_last = seed, shuffle, drop_last

    def __iter__(self) -> Iterator[Any]:
        """See the port."""
        epoch = self.epoch
        while self.epoch == epoch:
            yield self.next_batch()

    def next_batch(self) -> Any:
        """See the port."""
        rows = self.next_rows()
        self._move_on()
        return default_collate([self._dataset[row] for row in rows])

    def next_rows(self) -> list[int]:
        """See the port."""
        order, mine = self._order(), []
        first = self.position + self._rank * self._batch_size
        for place in range(first, first + self._batch_size):
            # Behind the last row of an epoch come its first ones again, as often as it takes.
            mine.append(order[place % self._rows])
        return mine

    def state_dict(self) -> dict[str, Any]:
        """See the port."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "rows": self._rows,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See the port."""
        missing = sorted(self.state_dict().keys() - state_dict.keys())
        if missing:
            raise ValueError(f"the state of the data lacks {', '.join(missing)}")
        if state_dict["rows"] != self._rows:
            raise ValueError(
                f"the state is that of {state_dict['rows']} rows, and there are {self._rows}: "
                "its position would be another one; start a new run, or give the same data"
            )
        if not 0 <= state_dict["position"] < self._rows or state_dict["epoch"] < 0:
            raise ValueError(
                f"position {state_dict['position']} of epoch {state_dict['epoch']} is none of {self._rows} rows"
            )
        self.epoch, self.position = state_dict["epoch"], state_dict["position"]
        self._seed, self._shuffle = state_dict["seed"], state_dict["shuffle"]
        self._close_epoch()

    def _move_on(self) -> None:
        self.position += self._batch_size * self._size
        self._close_epoch()

    def _close_epoch(self) -> None:
        """Goes to the next epoch where this one has no batch left."""
        needed = self._batch_size * self._size if self._drop_last else 1
        if self._rows - self.position < needed:
            self.epoch, self.position = self.epoch + 1, 0

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._rows))
        # torch's CPU generator takes 32 bits of a seed, so both numbers have to be mixed into them.
        digest = hashlib.blake2b(f"{self._seed} {self.epoch}".encode(), digest_size=4).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest))
        return torch.randperm(self._rows, generator=generator).tolist()
