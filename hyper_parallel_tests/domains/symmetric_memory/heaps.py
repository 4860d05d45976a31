"""Heaps that the cases work in, and the ranks that they reach from one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.harness import World

HEAP = 2**16
# For waits that must run out: nothing comes, however long they are.
SHORT = timedelta(milliseconds=20)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int64": torch.int64}

each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


@contextmanager
def acquired(engine: Any, heap_size: int | None = HEAP, group: Any = None) -> Iterator[Any]:
    """Context with symmetric memory of a group's ranks, None for all."""
    memory = engine.acquire_symmetric_memory(group, heap_size=heap_size)
    try:
        yield memory
    finally:
        memory.close()


def filled(memory: Any, values: Tensor) -> Tensor:
    """A symmetric tensor that has `values` on this rank, made by all ranks."""
    tensor = memory.empty(tuple(values.shape), values.dtype)
    return tensor.copy_(values)


def zeros(memory: Any, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A symmetric tensor of zeros on all ranks, which may be written to when this returns."""
    tensor = memory.empty(shape, dtype).zero_()
    memory.barrier()
    return tensor


def stay_behind(engine: Any, word: Tensor) -> None:
    """Has this rank wait for a signal that nobody sends, while the others go on as far as they can."""
    with pytest.raises(TimeoutError):
        engine.shmem_wait_for_signal(word, 0, 1, timeout=SHORT)


def next_rank(world: World) -> int:
    return (world.rank + 1) % world.size


def previous_rank(world: World) -> int:
    return (world.rank - 1) % world.size


def values_of(rank: int, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Small whole numbers of a rank, none of them zero: sums and products of a few are exact in every dtype."""
    source = torch.Generator().manual_seed(100 * seed + rank)
    signs = 2 * torch.randint(2, shape, generator=source) - 1
    return (torch.randint(1, 4, shape, generator=source) * signs).to(dtype)
