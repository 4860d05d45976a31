"""What of a heap is taken."""

from __future__ import annotations

ALIGNMENT = 64
"""Bytes: a cache line, and a multiple of every dtype's size."""


class SymmetricHeap:
    """See the port. First fit, lowest offset first; sizes are rounded up to the heap's alignment."""

    def __init__(self, nbytes: int, *, alignment: int = ALIGNMENT) -> None:
        _check_alignment(alignment)
        if nbytes <= 0 or nbytes % alignment:
            raise ValueError(f"a heap of {nbytes} bytes: expected a positive multiple of its alignment, {alignment}")
        self._size, self._alignment = nbytes, alignment
        # Offset -> bytes of each piece; free ones never touch each other.
        self._free: dict[int, int] = {0: nbytes}
        self._taken: dict[int, int] = {}

    @property
    def free_bytes(self) -> int:
        """See the port."""
        return sum(self._free.values())

    def allocate(self, nbytes: int, alignment: int | None = None) -> int:
        """See the port."""
        if alignment is None:
            alignment = self._alignment
        _check_alignment(alignment)
        alignment = max(alignment, self._alignment)
        if nbytes <= 0:
            raise ValueError(f"{nbytes} bytes of symmetric memory: expected a positive number")
        needed = rounded_up(nbytes, self._alignment)
        for start in sorted(self._free):
            offset = rounded_up(start, alignment)
            rest = start + self._free[start] - offset - needed
            if rest >= 0:
                del self._free[start]
                self._keep(start, offset - start)
                self._keep(offset + needed, rest)
                self._taken[offset] = needed
                return offset
        raise MemoryError(
            f"symmetric memory is exhausted: {nbytes} bytes aligned to {alignment} were asked for; the largest piece "
            f"has {max(self._free.values(), default=0)}, and {self.free_bytes} of {self._size} are free. Free tensors, "
            "or acquire the memory with a larger heap_size"
        )

    def free(self, offset: int) -> None:
        """See the port."""
        if offset not in self._taken:
            raise ValueError(
                f"nothing is taken at offset {offset}: it was given back before, or is no allocation's start"
            )
        self._keep(offset, self._taken.pop(offset))
        self._free = _merged(self._free)

    def _keep(self, offset: int, nbytes: int) -> None:
        if nbytes:
            self._free[offset] = nbytes


def _merged(pieces: dict[int, int]) -> dict[int, int]:
    """Neighbouring pieces as one."""
    merged: dict[int, int] = {}
    last = None
    for offset in sorted(pieces):
        if last is not None and last + merged[last] == offset:
            merged[last] += pieces[offset]
        else:
            last = offset
            merged[offset] = pieces[offset]
    return merged


def rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _check_alignment(alignment: int) -> None:
    if alignment <= 0 or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment}: expected a power of two")
