"""Symmetric tensors of a card that is alone: where they are, and what becomes of them."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.symmetric_memory.heaps import HEAP, acquired, each_dtype, filled, values_of
from hyper_parallel_tests.harness import assert_equal, contract


@pytest.fixture
def memory(engine):
    with acquired(engine) as owner:
        yield owner


def all_that_is_left(memory) -> int:
    """Bytes of the largest tensor that fits, to 64."""
    for nbytes in range(HEAP, 0, -64):
        try:
            memory.free(memory.empty(nbytes, torch.uint8))
        except MemoryError:
            continue
        return nbytes
    return 0


@contract("SM-0-01")
@each_dtype
@pytest.mark.parametrize("shape", [5, (3, 7), [2, 1, 3]], ids=["number", "tuple", "list"])
def test_tensor_is_as_asked_for(memory, dtype, shape):
    """Shape and dtype are those asked for, rows follow each other, and it begins at a multiple of 64 bytes."""
    memory.empty(1, torch.uint8)
    tensor = memory.empty(shape, dtype)
    assert (list(tensor.shape), tensor.dtype) == ([shape] if isinstance(shape, int) else list(shape), dtype)
    assert tensor.is_contiguous()
    assert tensor.data_ptr() % 64 == 0


@contract("SM-0-01")
def test_tensors_keep_their_values_side_by_side(memory):
    """Of many tensors none writes into another, also where some were given back between them."""
    shapes = [(5,), (3, 7), (64,), (2, 2, 2)]
    kept = {}
    for number in range(24):
        values = values_of(number, *shapes[number % 4])
        tensor = filled(memory, values)
        if number % 3 == 1:
            memory.free(tensor)
        else:
            kept[number] = (tensor, values)
    tensors, expected = zip(*kept.values(), strict=True)
    assert_equal(list(tensors), list(expected), what="tensors")


@contract("SM-0-01")
def test_freed_memory_is_used_again(memory):
    """What is given back is had again by the next tensor that fits, and what is too large goes elsewhere."""
    first, second = memory.empty(64, torch.float32), memory.empty(64, torch.float32)
    place = first.data_ptr()
    memory.free(first)
    assert memory.empty(65, torch.float32).data_ptr() > second.data_ptr()
    assert memory.empty((4, 16), torch.float32).data_ptr() == place


@contract("SM-0-01")
def test_freed_tensor_is_empty(memory):
    """A tensor that was given back has no element by which it could reach its successor's memory."""
    tensor = memory.empty(8, torch.float32)
    memory.free(tensor)
    assert tensor.numel() == 0


@contract("SM-0-01")
def test_exhausted_heap(memory):
    """The error has what was asked for and the heap's size; tensors stay, and what fits is had."""
    kept = filled(memory, values_of(0, 64))
    with pytest.raises(MemoryError, match=rf"(?s)\b{HEAP}\b.*\b{HEAP}\b"):
        memory.empty(HEAP // 4, torch.float32)
    assert_equal(kept, values_of(0, 64), what="kept")
    left = all_that_is_left(memory)
    memory.empty(left, torch.uint8)
    with pytest.raises(MemoryError):
        memory.empty(1, torch.uint8)


@contract("SM-0-01")
@pytest.mark.parametrize("backwards", [False, True], ids=["first_first", "last_first"])
def test_all_that_was_taken_can_be_taken_at_once(memory, backwards):
    """After many small tensors have been given back, in either order, one fits that is as large as before."""
    left = all_that_is_left(memory)
    tensors = [memory.empty(16, torch.float32) for _ in range(left // 64)]
    for tensor in tensors[::-1] if backwards else tensors:
        memory.free(tensor)
    assert all_that_is_left(memory) == left


@contract("SM-0-01")
@pytest.mark.parametrize("whose", ["given_back", "a_part", "another_memory", "ordinary"])
def test_tensor_that_cannot_be_freed(engine, memory, whose):
    """A second time, a part of a tensor, and a tensor from elsewhere are refused; all stay."""
    tensor = filled(memory, values_of(0, 8))
    with acquired(engine) as other:
        wrong = {"a_part": tensor[2:], "another_memory": other.empty(8, torch.float32), "ordinary": torch.zeros(8)}.get(
            whose
        )
        if wrong is None:
            memory.free(wrong := memory.empty(8, torch.float32))
        with pytest.raises(ValueError, match="(?i)given back|not owned"):
            memory.free(wrong)
    assert_equal(tensor, values_of(0, 8), what="kept")
    memory.free(tensor)


@contract("SM-0-01")
@pytest.mark.parametrize("shape", [0, -1, (2, 0), ()], ids=str)
def test_shape_that_is_not_positive(memory, shape):
    """A tensor without elements, or without dimensions, is refused."""
    with pytest.raises(ValueError, match="positive"):
        memory.empty(shape, torch.float32)


@contract("SM-0-01")
def test_heap_size_from_the_environment(engine, monkeypatch):
    """Unless told otherwise a heap is as large as SYMMETRIC_MEMORY_HEAP_SIZE says."""
    monkeypatch.setenv("SYMMETRIC_MEMORY_HEAP_SIZE", str(HEAP))
    with acquired(engine, None) as memory, pytest.raises(MemoryError, match=rf"\b{HEAP}\b"):
        memory.empty(HEAP + 1, torch.uint8)


@contract("SM-0-01")
@pytest.mark.parametrize("heap_size", [0, -1])
def test_heap_size_that_is_not_positive(engine, heap_size):
    """It is refused and named."""
    with pytest.raises(ValueError, match=str(heap_size)), acquired(engine, heap_size):
        pass


@contract("SM-0-01")
@pytest.mark.parametrize("heap_size", [1, 1000])
def test_heap_of_an_odd_size(engine, heap_size):
    """It is a heap like others: what is too large for it is refused with what to do."""
    with acquired(engine, heap_size) as memory, pytest.raises(MemoryError, match="heap_size"):
        memory.empty(2 * heap_size, torch.uint8)


@contract("SM-0-01")
@pytest.mark.parametrize("use", ["empty", "barrier", "quiet", "fence"])
def test_use_after_the_end(engine, use):
    """Memory that was closed refuses; closing it again does nothing."""
    with acquired(engine) as memory:
        pass
    memory.close()
    arguments = (4, torch.float32) if use == "empty" else ()
    with pytest.raises(RuntimeError, match="closed"):
        getattr(memory, use)(*arguments)


@contract("SM-0-01")
def test_memory_acquired_many_times(engine):
    """Heaps that are acquired and ended leave room for the next, as large as they are."""
    for turn in range(20):
        with acquired(engine, 2**30) as memory:
            assert_equal(filled(memory, values_of(turn, 8)), values_of(turn, 8), what=f"tensor of heap {turn}")
