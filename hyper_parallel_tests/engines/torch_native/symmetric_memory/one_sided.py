"""Puts, gets and signals."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
from torch import Tensor

from hyper_parallel_tests.engines.torch_native.symmetric_memory.owner import Owner, place_of
from hyper_parallel_tests.engines.torch_native.symmetric_memory.segment import seconds, until

COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")
}


def shmem_put(target: Tensor, target_offset: int, src: Tensor, src_offset: int, size: int, target_rank: int) -> None:
    """See the port."""
    owner, write = _put(target, target_offset, src, src_offset, size, target_rank)
    owner.transfers.add(target_rank, write)


def shmem_get(target: Tensor, target_offset: int, src: Tensor, src_offset: int, size: int, target_rank: int) -> None:
    """See the port."""
    _, there = _remote(src, src_offset, size, target_rank, "src")
    _check_pair(target, target_offset, src, size, "target")
    _elements(target, target_offset, size).copy_(there)


def shmem_signal_op(
    signal: Tensor, signal_offset: int, signal_value: int, signal_op: str = "set", target_rank: int = 0
) -> None:
    """See the port."""
    owner, change = _signal(signal, signal_offset, signal_value, signal_op, target_rank)
    owner.transfers.add(target_rank, change)


def shmem_put_with_signal(
    target: Tensor,
    target_offset: int,
    src: Tensor,
    src_offset: int,
    size: int,
    signal: Tensor,
    signal_offset: int,
    signal_value: int,
    signal_op: str = "set",
    target_rank: int = 0,
) -> None:
    """See the port."""
    owner, change = _signal(signal, signal_offset, signal_value, signal_op, target_rank)
    _, write = _put(target, target_offset, src, src_offset, size, target_rank)
    owner.transfers.add(target_rank, write, change)


def shmem_wait_for_signal(
    signal: Tensor,
    signal_offset: int,
    compare_value: int,
    compare_op: str = "eq",
    *,
    source_rank: int | None = None,
    timeout: timedelta | None = None,
) -> int:
    """See the port."""
    if compare_op not in COMPARISONS:
        raise ValueError(f"comparison {compare_op!r}: expected one of {', '.join(COMPARISONS)}")
    owner, word = _word(signal, signal_offset, None)
    found = 0

    def arrived() -> bool:
        nonlocal found
        with owner.segment.locked():
            found = int(word)
        return COMPARISONS[compare_op](found, compare_value)

    if not until(arrived, timeout):
        source = "any rank" if source_rank is None else f"rank {source_rank}"
        raise TimeoutError(
            f"rank {owner.rank} waited {seconds(timeout):g} s for a signal of {source}: word {signal_offset} should be "
            f"{compare_op} {compare_value}, found {found}"
        )
    return found


def _put(
    target: Tensor, target_offset: int, src: Tensor, src_offset: int, size: int, target_rank: int
) -> tuple[Owner, Callable[[], object]]:
    owner, there = _remote(target, target_offset, size, target_rank, "target")
    _check_pair(src, src_offset, target, size, "src")
    # The caller may change its tensor before the thread comes to write.
    return owner, partial(there.copy_, _elements(src, src_offset, size).clone())


def _signal(
    signal: Tensor, signal_offset: int, value: int, signal_op: str, target_rank: int
) -> tuple[Owner, Callable[[], object]]:
    if signal_op not in ("set", "add"):
        raise ValueError(f"signal operation {signal_op!r}: expected 'set' or 'add'")
    owner, word = _word(signal, signal_offset, target_rank)
    return owner, partial(change_word, owner, word, value, signal_op)


def change_word(owner: Owner, word: Tensor, value: int, signal_op: str) -> None:
    """Sets a word or adds to it, as one step for all ranks."""
    with owner.segment.locked():
        total = value + (int(word) if signal_op == "add" else 0)
        word.fill_((total + 2**31) % 2**32 - 2**31)


def _word(signal: Tensor, signal_offset: int, target_rank: int | None) -> tuple[Owner, Tensor]:
    """A word of a signal on a rank, None for the calling one."""
    if signal.dtype != torch.int32:
        raise ValueError(f"a signal of {signal.dtype}: expected torch.int32")
    if target_rank is None:
        target_rank = place_of(signal, "signal")[0].rank
    owner, word = _remote(signal, signal_offset, 1, target_rank, "signal")
    return owner, word.view(())


def _remote(tensor: Tensor, offset: int, size: int, rank: int, what: str) -> tuple[Owner, Tensor]:
    """Elements of a symmetric tensor as ``rank`` has them, and the memory's owner."""
    owner, place = place_of(tensor, what)
    if not 0 <= rank < owner.size:
        raise ValueError(f"target_rank {rank}: expected one of 0 to {owner.size - 1}")
    _check_range(tensor, offset, size, what)
    start = place + offset * tensor.itemsize
    return owner, owner.heap_of(rank)[start : start + size * tensor.itemsize].view(tensor.dtype)


def _check_pair(local: Tensor, offset: int, symmetric: Tensor, size: int, what: str) -> None:
    if local.dtype != symmetric.dtype:
        raise ValueError(f"dtypes of target and src differ: {what} has {local.dtype}, the other {symmetric.dtype}")
    if not local.is_contiguous():
        raise ValueError(f"{what} is not contiguous: shape {list(local.shape)}, strides {list(local.stride())}")
    _check_range(local, offset, size, what)


def _check_range(tensor: Tensor, offset: int, size: int, what: str) -> None:
    if offset < 0 or size < 0 or offset + size > tensor.numel():
        raise ValueError(f"elements {offset} to {offset + size} of {what}: it has {tensor.numel()}")


def _elements(tensor: Tensor, offset: int, size: int) -> Tensor:
    return tensor.detach().view(-1)[offset : offset + size]
