"""What of a heap is taken, and what is given back."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.harness.properties import PROFILE

SIZE = 4096
PIECE = SIZE // 4

# Sizes to take (positive), and which of those that are held then to give back (negative).
programs = st.lists(st.integers(1, SIZE // 2) | st.integers(-8, -1), max_size=30)


def taken(heap: Any, nbytes: int) -> int | None:
    """The offset that so many bytes get, None where the heap is exhausted."""
    try:
        return heap.allocate(nbytes)
    except MemoryError:
        return None


def run(heap: Any, program: list[int]) -> list[int | None]:
    """The offsets that a program gets, None where the heap is exhausted; holds each to what is held at the time."""
    held: dict[int, int] = {}
    offsets = []
    for step in program:
        if step < 0:
            if held:
                heap.free(offset := sorted(held)[step % len(held)])
                del held[offset]
            continue
        offset = taken(heap, step)
        if offset is not None:
            assert 0 <= offset <= SIZE - step, f"{step} bytes at {offset} leave a heap of {SIZE}"
            assert all(offset + step <= other or other + size <= offset for other, size in held.items()), (
                "pieces overlap"
            )
            held[offset] = step
        offsets.append(offset)
    for offset in held:
        heap.free(offset)
    return offsets


@contract("SM-0-01")
@PROFILE
@given(program=programs)
def test_pieces_are_disjoint_and_all_come_back(engine, program):
    """Whatever is taken and given back in whatever order, pieces do not overlap, and in the end all is one piece."""
    heap = engine.symmetric_heap(SIZE)
    run(heap, program)
    assert heap.free_bytes == SIZE
    assert taken(heap, SIZE) == 0


@contract("SM-0-01")
def test_same_calls_give_the_same_offsets_on_every_rank(engine):
    """Each of eight ranks that takes and gives back the same gets the same offsets."""
    program = [100, 700, 64, -1, 500, 1, -3, 64, 900, -2, 300]
    by_rank = []
    for rank in range(8):
        with engine.simulated_world(rank, 8):
            by_rank.append(run(engine.symmetric_heap(SIZE), program))
    assert by_rank == [by_rank[0]] * 8


@contract("SM-0-01")
@pytest.mark.parametrize("alignment", [None, 8, 64, 256, 1024])
@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 200])
def test_offsets_are_aligned(engine, alignment, nbytes):
    """Behind a piece of any size the next one begins at a multiple of its alignment, and of the heap's."""
    heap = engine.symmetric_heap(SIZE, alignment=64)
    heap.allocate(nbytes)
    assert heap.allocate(nbytes, alignment) % max(alignment or 0, 64) == 0


@contract("SM-0-01")
@pytest.mark.parametrize("alignment", [-64, 0, 3, 96])
def test_wrong_alignment(engine, alignment):
    """An alignment that is no power of two is refused, and named."""
    with pytest.raises(ValueError, match=str(alignment)):
        engine.symmetric_heap(SIZE, alignment=alignment)
    with pytest.raises(ValueError, match=str(alignment)):
        engine.symmetric_heap(SIZE).allocate(64, alignment)


@contract("SM-0-01")
@pytest.mark.parametrize("nbytes", [0, -64, 100])
def test_heap_of_an_impossible_size(engine, nbytes):
    """A heap of nothing, of less, or of a part of its alignment's unit is refused, and its size named."""
    with pytest.raises(ValueError, match=str(nbytes)):
        engine.symmetric_heap(nbytes)


@contract("SM-0-01")
@pytest.mark.parametrize("nbytes", [0, -1])
def test_size_that_is_not_positive(engine, nbytes):
    """Nothing, or less, cannot be taken."""
    with pytest.raises(ValueError, match=str(nbytes)):
        engine.symmetric_heap(SIZE).allocate(nbytes)


@contract("SM-0-01")
def test_exhaustion_names_the_sizes(engine):
    """The error has what was asked for, the largest piece, what is free and the heap; and nothing is taken."""
    heap = engine.symmetric_heap(SIZE)
    offsets = [heap.allocate(PIECE) for _ in range(4)]
    heap.free(offsets[0])
    heap.free(offsets[2])
    with pytest.raises(MemoryError) as refusal:
        heap.allocate(PIECE + 1)
    for number in (PIECE + 1, PIECE, 2 * PIECE, SIZE):
        assert re.search(rf"\b{number}\b", str(refusal.value)), f"{number} is missing in: {refusal.value}"
    assert heap.free_bytes == 2 * PIECE
    assert [taken(heap, PIECE), taken(heap, PIECE)] == [offsets[0], offsets[2]]


@contract("SM-0-01")
def test_all_of_the_heap_can_be_taken(engine):
    """A piece as large as the heap fits, and then not one byte more."""
    heap = engine.symmetric_heap(SIZE)
    assert taken(heap, SIZE) == 0
    with pytest.raises(MemoryError):
        heap.allocate(1)


@contract("SM-0-01")
@pytest.mark.parametrize("order", permutations(range(4)), ids=lambda order: "".join(map(str, order)))
def test_neighbours_become_one_piece(engine, order):
    """Given back in any order, four pieces are one again."""
    heap = engine.symmetric_heap(SIZE)
    offsets = [heap.allocate(PIECE) for _ in range(4)]
    for number in order:
        heap.free(offsets[number])
    assert taken(heap, SIZE) == 0, f"{heap.free_bytes} bytes are free, but not in one piece"


@contract("SM-0-01")
def test_neighbours_of_what_is_held_stay_apart(engine):
    """Pieces on both sides of one that is held are not one, however much they are together."""
    heap = engine.symmetric_heap(SIZE)
    offsets = [heap.allocate(PIECE) for _ in range(4)]
    for number in (0, 1, 3):
        heap.free(offsets[number])
    with pytest.raises(MemoryError):
        heap.allocate(3 * PIECE)
    assert taken(heap, 2 * PIECE) == offsets[0]


@contract("SM-0-01")
@pytest.mark.parametrize("offset", ["given_back", "inside", "never_taken"])
def test_giving_back_what_is_not_held(engine, offset):
    """What was given back, or is no piece's begin, is refused with its offset, and the heap stays as it is."""
    heap = engine.symmetric_heap(SIZE)
    kept, gone = heap.allocate(PIECE), heap.allocate(PIECE)
    heap.free(gone)
    wrong = {"given_back": gone, "inside": kept + 64, "never_taken": 3 * PIECE}[offset]
    with pytest.raises(ValueError, match=str(wrong)):
        heap.free(wrong)
    assert heap.free_bytes == SIZE - PIECE
    heap.free(kept)
    assert taken(heap, SIZE) == 0
