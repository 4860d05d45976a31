"""Memory that all ranks of a group on one host map, with a lock over all of them, and a barrier."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

PATIENCE = timedelta(seconds=30)
"""How long whatever waits for another rank does so, unless told."""

# A process waits for one file's lock at a time: the kernel takes two threads that wait for two files for one that waits
# for itself (EDEADLK). And locks of files do not keep threads of one process apart.
_one_at_a_time = threading.Lock()


class Segment:
    """A page of control words, then each rank's heap.

    Order between ranks comes from the lock and not from the processor: whoever has written takes it to tell, whoever
    wants to read takes it to ask. The kernel drops the lock of a rank that dies.

    Attributes:
        rank: of the calling process in the group.
        size: number of ranks.
        heaps: each rank's heap, uint8.
    """

    def __init__(self, group: ProcessGroup | None, heap_size: int) -> None:
        # Without a process group a rank is alone.
        together = dist.is_initialized()
        self.rank, self.size = (dist.get_rank(group), dist.get_world_size(group)) if together else (0, 1)
        # What a rank publishes to the others: a few numbers, or two for each rank.
        self._row = 4 + 2 * self.size
        words = self.size * (1 + 2 * self._row)
        control = -(-words * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
        heap = -(-heap_size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._file = _shared_file(group, self.rank, self.size, control + self.size * heap)
        memory = mmap.mmap(self._file, control + self.size * heap)
        self._words = memoryview(memory)[: words * 8].cast("q")
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self.heaps = [whole[control + rank * heap :][:heap_size] for rank in range(self.size)]
        self._published = 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context that one thread of one rank is in at a time."""
        with _one_at_a_time:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def meet(self, timeout: timedelta | None = None) -> None:
        """Returns when all ranks have called it as often as this one.

        Raises:
            TimeoutError: some have not; this call does not count then.
        """
        with self.locked():
            self._words[self.rank] += 1
            generation = self._words[self.rank]
        if until(lambda: not self._missing(generation), timeout):
            return
        with self.locked():
            # Asked again in the same breath as withdrawing: none may have seen all and gone on.
            missing = self._late(generation)
            if missing:
                self._words[self.rank] -= 1
        if missing:
            raise TimeoutError(
                f"rank {self.rank} waited {seconds(timeout):g} s at barrier {generation} for ranks {missing}, "
                "which have not come"
            )

    def publish(self, numbers: Sequence[int]) -> list[list[int]]:
        """What each rank says, in the order of ranks; collective, with equally many numbers."""
        # Two rows a rank in turn: who writes the next but one has met those who read this one.
        start = self.size + self._published % 2 * self.size * self._row
        mine = start + self.rank * self._row
        for place, number in enumerate(numbers):
            self._words[mine + place] = number
        self.meet()
        # Not before: a round that ran out of time has not been, on any rank.
        self._published += 1
        rows = [start + rank * self._row for rank in range(self.size)]
        return [list(self._words[row : row + len(numbers)]) for row in rows]

    def close(self) -> None:
        """Gives the file back; the memory goes with the last tensor of the last rank."""
        os.close(self._file)

    def _missing(self, generation: int) -> list[int]:
        with self.locked():
            return self._late(generation)

    def _late(self, generation: int) -> list[int]:
        return [rank for rank in range(self.size) if self._words[rank] < generation]


def until(done: Callable[[], object], timeout: timedelta | None = None) -> bool:
    """Asks again and again, ever more seldom; returns whether it was so in time."""
    end = time.monotonic() + seconds(timeout)
    pause = 2e-5
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)
    return True


def seconds(timeout: timedelta | None) -> float:
    """A port's timeout as a number."""
    return (PATIENCE if timeout is None else timeout).total_seconds()


def _shared_file(group: ProcessGroup | None, rank: int, size: int, nbytes: int) -> int:
    """Descriptor of a file that the group's ranks have in common.

    It has no name, so that nothing is left of it whichever rank dies when; it takes memory where it is written to.
    """
    place = [""]
    if rank == 0:
        file = os.memfd_create("symmetric_memory")
        os.truncate(file, nbytes)
        place = [f"/proc/{os.getpid()}/fd/{file}"]
    if size > 1:
        dist.broadcast_object_list(place, group=group, group_src=0)
        if rank:
            file = os.open(place[0], os.O_RDWR | os.O_CLOEXEC)
        # Until all have opened it, the first rank must not close it.
        dist.barrier(group)
    return file
