"""What the schedules promise: how many micro-batches are in flight, and how long ranks wait.

Sources: GPipe (arXiv 1811.06965), 1F1B and its interleaving (2104.04473), breadth-first (2211.05953), zero bubble
(2401.10241), DualPipeV as PyTorch documents it. Times are the simulator's: one unit forward, two backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

__all__ = ["PLANS", "Plan", "one_f_one_b"]

MOST_STAGES = 16
MOST_MICROBATCHES = 64

# Forward passes of a table that is made and judged in a hundredth of a second, the largest one in a third of one.
CHEAP = 128

_WHOLE_BACKWARD = ("GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B")


@dataclass(frozen=True)
class Plan:
    """A schedule by name, with `stages_per_rank` stages on each rank."""

    schedule: str
    stages_per_rank: int = 1

    def __str__(self) -> str:
        return f"{self.schedule}-{self.stages_per_rank}"

    @property
    def takes_few(self) -> bool:
        """Whether there may be fewer micro-batches than ranks."""
        return self._least(2) == 1

    @property
    def largest(self) -> tuple[int, int]:
        """As many ranks as have 16 stages together, with 64 micro-batches or the nearest number that divides."""
        return max(self.sizes(cells=MOST_STAGES * MOST_MICROBATCHES))

    def sizes(self, *, filled: bool = False, cells: int = CHEAP) -> list[tuple[int, int]]:
        """Numbers of ranks and micro-batches for which the schedule is defined, for 2 to 16 stages and 1 to 64.

        Args:
            filled: only where there are enough micro-batches that each stage is at work at one time.
            cells: most forward passes of one table.
        """
        least = self._filling if filled else self._least
        return [
            (ranks, microbatches)
            for ranks in range(1, MOST_STAGES // self.stages_per_rank + 1)
            for microbatches in range(least(ranks), MOST_MICROBATCHES + 1)
            if (stages := ranks * self.stages_per_rank) > 1 and stages * microbatches <= cells
            if self._divides(ranks, microbatches)
        ]

    def limits(self, ranks: int, microbatches: int) -> dict[int, int]:
        """For each rank the most forward passes that may be open at one time, over all of its stages."""
        full = self.stages_per_rank * microbatches
        # Interleaved, a rank turns to its next stage after so many micro-batches.
        earlier = (self.stages_per_rank - 1) * min(ranks, microbatches)
        most = {
            "GPipe": lambda rank: full,
            "LoopedBFS": lambda rank: full,
            "1F1B": lambda rank: ranks - rank,
            "Interleaved1F1B": lambda rank: earlier + 2 * (ranks - 1 - rank) + 1,
            "InterleavedZeroBubble": lambda rank: earlier + ranks,
            "ZBVZeroBubble": lambda rank: 2 * ranks,
            "DualPipeV": lambda rank: 2 * ranks + 1,
        }[self.schedule]
        return {rank: min(full, most(rank)) for rank in range(ranks)}

    def bubble_fraction(self, ranks: int, microbatches: int) -> Fraction:
        """(p - 1) / (v m + p - 1) with p ranks of v stages; a third of that bubble where it is filled with W."""
        waiting = (ranks - 1) * (3 if self.schedule in _WHOLE_BACKWARD else 1)
        return Fraction(waiting, 3 * self.stages_per_rank * microbatches + waiting)

    def _least(self, ranks: int) -> int:
        return {"1F1B": ranks, "DualPipeV": 2 * ranks}.get(self.schedule, 1)

    def _filling(self, ranks: int) -> int:
        return {"GPipe": 1, "ZBVZeroBubble": 2 * ranks - 1, "DualPipeV": 2 * ranks}.get(self.schedule, ranks)

    def _divides(self, ranks: int, microbatches: int) -> bool:
        return not self.schedule.startswith("Interleaved") or microbatches < ranks or microbatches % ranks == 0


PLANS = [
    Plan("GPipe"),
    Plan("1F1B"),
    Plan("LoopedBFS", 2),
    Plan("Interleaved1F1B", 2),
    Plan("Interleaved1F1B", 3),
    Plan("InterleavedZeroBubble", 2),
    Plan("ZBVZeroBubble", 2),
    Plan("DualPipeV", 2),
]


def one_f_one_b(ranks: int, microbatches: int) -> dict[int, list[str]]:
    """The computations of 1F1B with one stage a rank, for any number of micro-batches: the table without messages."""
    table = {}
    for rank in range(ranks):
        ahead = min(ranks - 1 - rank, microbatches)
        order = [f"{rank}F{one}" for one in range(ahead)]
        for one in range(ahead, microbatches):
            order += [f"{rank}F{one}", f"{rank}B{one - ahead}"]
        table[rank] = order + [f"{rank}B{one}" for one in range(microbatches - ahead, microbatches)]
    return table
