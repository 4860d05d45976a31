"""Products beside the transfers of their operands or results."""

from __future__ import annotations

import torch
from torch import Tensor

from hyper_parallel_tests.engines.torch_native.symmetric_memory.one_sided import (
    shmem_put_with_signal,
    shmem_wait_for_signal,
)
from hyper_parallel_tests.engines.torch_native.symmetric_memory.owner import Owner, place_of


def fused_all_gather_matmul(
    a: Tensor, b: Tensor, c: Tensor, gather_out: Tensor, signal: Tensor, block_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """See the port."""
    owner, _ = place_of(gather_out, "gather_out")
    rows, inner = _rows_and_columns("a", a)
    _check_shape("gather_out", gather_out, (owner.size * rows, inner))
    _check_shape("b", b, (inner, b.shape[-1]))
    _check_shape("c", c, (owner.size * rows, b.shape[1]))
    _check_dtypes(a=a, b=b, c=c, gather_out=gather_out)
    blocks = _blocks(rows, owner.size, block_size)
    _begin(owner, signal)
    source = a.contiguous()
    for start, end in blocks:
        for step in range(owner.size):
            target = (owner.rank + step) % owner.size
            place, size = (owner.rank * rows + start) * inner, (end - start) * inner
            shmem_put_with_signal(gather_out, place, source, start * inner, size, signal, owner.rank, 1, "add", target)
        # One word counts all blocks of a rank, so they must come in order.
        owner.fence()
    for number, (start, end) in enumerate(blocks, 1):
        for step in range(owner.size):
            rank = (owner.rank - step) % owner.size
            shmem_wait_for_signal(signal, rank, number, "ge", source_rank=rank)
            here = slice(rank * rows + start, rank * rows + end)
            torch.matmul(gather_out[here], b, out=c[here])
    return gather_out, c


def fused_matmul_reduce_scatter(
    x1: Tensor, x2: Tensor, symm_tensor: Tensor, signal: Tensor, reduce_op: str = "sum"
) -> Tensor:
    """See the port."""
    owner, _ = place_of(symm_tensor, "symm_tensor")
    rows, inner = _rows_and_columns("x1", x1)
    columns = x2.shape[-1]
    if reduce_op not in ("sum", "avg"):
        raise ValueError(f"reduce_op {reduce_op!r}: expected 'sum' or 'avg'")
    if rows % owner.size:
        raise ValueError(f"{rows} rows of x1 do not divide over {owner.size} ranks")
    _check_shape("x2", x2, (inner, columns))
    _check_shape("symm_tensor", symm_tensor, (rows, columns))
    _check_dtypes(x1=x1, x2=x2, symm_tensor=symm_tensor)
    _begin(owner, signal)
    share = rows // owner.size
    # The others' first, so that they travel while the rest is computed.
    for step in range(1, owner.size + 1):
        target = (owner.rank + step) % owner.size
        part = x1[target * share : (target + 1) * share] @ x2
        size = share * columns
        shmem_put_with_signal(symm_tensor, owner.rank * size, part, 0, size, signal, owner.rank, 1, "set", target)
    total = torch.zeros(share, columns, dtype=x1.dtype)
    for rank in range(owner.size):
        shmem_wait_for_signal(signal, rank, 1, source_rank=rank)
        total += symm_tensor[rank * share : (rank + 1) * share]
    return total / owner.size if reduce_op == "avg" else total


def _blocks(rows: int, ranks: int, block_size: int | None) -> list[tuple[int, int]]:
    """First row and end of the blocks that a rank's rows travel in."""
    if block_size is None:
        block_size = max(1, rows // min(ranks, 4))
    if block_size < 1:
        raise ValueError(f"blocks of {block_size} rows: expected a positive number")
    return [(start, min(start + block_size, rows)) for start in range(0, rows, block_size)]


def _begin(owner: Owner, signal: Tensor) -> None:
    """Resets this rank's words, and returns when all ranks have, so that nobody is signalled before."""
    if signal.numel() < owner.size:
        raise ValueError(f"a signal of {signal.numel()} words: expected one for each of {owner.size} ranks")
    signal.zero_()
    owner.barrier()


def _rows_and_columns(what: str, tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim != 2:
        raise ValueError(f"{what} has shape {list(tensor.shape)}: expected a matrix")
    return tensor.shape[0], tensor.shape[1]


def _check_shape(what: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{what} has shape {list(tensor.shape)}: expected {list(expected)}")


def _check_dtypes(**tensors: Tensor) -> None:
    if len({one.dtype for one in tensors.values()}) > 1:
        found = ", ".join(f"{name} {one.dtype}" for name, one in tensors.items())
        raise ValueError(f"dtypes differ: {found}")
