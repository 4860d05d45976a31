"""Multimodal pipelines (Mpipe), a plain reference: whole encoders on all ranks of the decoder's pipeline.

An encoder before the first stage of the decoder would hold up all others. So each rank encodes some micro-batches
while it waits for the decoder, and what they encoded is put back into order for the decoder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

# Fewer hold the decoder up at times, more take memory and no less time.
_ENCODED_AHEAD = 4

_DURATION = {"F": 1, "B": 2}


def mpipe_assignment(n_microbatches: int, pp_size: int) -> list[list[int]]:
    """See the port."""
    return [list(range(rank, n_microbatches, pp_size)) for rank in range(pp_size)]


def mpipe_transpose(encoded: Sequence[Sequence[Any]]) -> list[Any]:
    """See the port."""
    counts = [len(items) for items in encoded]
    expected = [len(items) for items in mpipe_assignment(sum(counts), len(encoded))]
    if counts != expected:
        raise ValueError(f"{sum(counts)} micro-batches are dealt out to the ranks as {expected}, not as {counts}")
    return [encoded[one % len(encoded)][one // len(encoded)] for one in range(sum(counts))]


def mpipe_reordering(costs: Sequence[float], n_microbatches: int) -> list[int]:
    """See the port. The most expensive sample first, each into the cheapest micro-batch that has room."""
    size, rest = divmod(len(costs), n_microbatches)
    if rest:
        raise ValueError(f"{len(costs)} samples cannot be divided into {n_microbatches} micro-batches of one size")
    chosen: list[list[int]] = [[] for _ in range(n_microbatches)]
    for sample in sorted(range(len(costs)), key=lambda one: -costs[one]):
        with_room = [samples for samples in chosen if len(samples) < size]
        min(with_room, key=lambda samples: sum(costs[one] for one in samples)).append(sample)
    given = [list(range(first, first + size)) for first in range(0, len(costs), size)] if size else chosen
    # The rule of thumb can be worse than what was given.
    better = min(given, chosen, key=lambda parts: max(sum(costs[one] for one in part) for part in parts))
    return [sample for samples in better for sample in sorted(samples)]


def mpipe_restore(items: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """See the port."""
    if sorted(order) != list(range(len(items))):
        raise ValueError(f"{list(order)} is not an order of {len(items)} items: each place once")
    places = {sample: place for place, sample in enumerate(order)}
    return [items[places[sample]] for sample in range(len(items))]


def mpipe_table(pp_size: int, n_microbatches: int) -> dict[int, list[str]]:
    """See the port. Each rank begins the most urgent of what it can, on a clock of unit times."""
    return _Plan(pp_size, n_microbatches).table()


class _Work(NamedTuple):
    """A pass of a micro-batch through a stage."""

    stage: int
    kind: str
    microbatch: int


class _Plan:
    """A table in the making, in order of time."""

    def __init__(self, pp_size: int, n_microbatches: int) -> None:
        self._pp_size = pp_size
        self._to_do = {
            rank: {
                (stage, kind): [*(range(n_microbatches) if stage else encoded)]
                for stage in (0, rank + 1)
                for kind in "FB"
            }
            for rank, encoded in enumerate(mpipe_assignment(n_microbatches, pp_size))
        }
        self._ends: dict[_Work, int] = {}
        self._table: dict[int, list[str]] = {rank: [] for rank in range(pp_size)}

    def table(self) -> dict[int, list[str]]:
        """Lets each rank, whenever it is free, begin what is most urgent."""
        free_at: dict[int, int] = defaultdict(int)
        now = 0
        while any(work for queues in self._to_do.values() for work in queues.values()):
            for rank in range(self._pp_size):
                if free_at[rank] <= now and (chosen := self._most_urgent(rank, now)):
                    free_at[rank] = now + _DURATION[chosen.kind]
                    self._do(rank, chosen, free_at[rank])
            now += 1
        return self._table

    def _most_urgent(self, rank: int, now: int) -> _Work | None:
        """The decoder before the encoder, and of the decoder backward before forward: others wait for it."""
        for stage, kind in ((rank + 1, "B"), (rank + 1, "F"), (0, "F"), (0, "B")):
            queue = self._to_do[rank][stage, kind]
            if queue and self._may_begin(rank, work := _Work(stage, kind, queue[0]), now):
                return work
        return None

    def _may_begin(self, rank: int, work: _Work, now: int) -> bool:
        needed = self._needed(work)
        if needed and self._ends.get(needed, now + 1) > now:
            return False
        if work.kind == "B":
            return self._ends.get(work._replace(kind="F"), now + 1) <= now
        open_passes = len(self._to_do[rank][work.stage, "B"]) - len(self._to_do[rank][work.stage, "F"])
        return open_passes < (self._pp_size - rank if work.stage else _ENCODED_AHEAD)

    def _needed(self, work: _Work) -> _Work | None:
        """What makes the inputs of a pass, None for the first one and for the loss."""
        source = work.stage + (1 if work.kind == "B" else -1)
        return work._replace(stage=source) if 0 <= source <= self._pp_size else None

    def _do(self, rank: int, work: _Work, end: int) -> None:
        """Puts a pass and what is sent after it into the table.

        The receiver gets its action at once. So all ranks have their sends and receives in one common order, in which
        nobody waits in a circle.
        """
        stage, kind, microbatch = work
        self._to_do[rank][stage, kind].pop(0)
        self._ends[work] = end
        self._table[rank].append(f"{stage}{kind}{microbatch}")
        target = stage + (1 if kind == "F" else -1)
        if not 0 <= target <= self._pp_size:
            return
        receiver = target - 1 if target else microbatch % self._pp_size
        if receiver != rank:
            self._table[rank].append(f"{stage}SEND_{kind}{microbatch}")
            self._table[receiver].append(f"{target}RECV_{kind}{microbatch}")
