"""All-gather and all-to-all by puts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor

from hyper_parallel_tests.engines.torch_native.symmetric_memory.one_sided import (
    shmem_put_with_signal,
    shmem_wait_for_signal,
)
from hyper_parallel_tests.engines.torch_native.symmetric_memory.owner import Owner, place_of


def shmem_allgather(output_tensor: Tensor, input_tensor: Tensor) -> None:
    """See the port."""
    owner, _ = place_of(output_tensor, "output_tensor")
    size = input_tensor.numel()
    if output_tensor.numel() != size * owner.size:
        raise ValueError(
            f"{owner.size} ranks' inputs of {size} elements do not fit an output of {output_tensor.numel()}"
        )
    _check_dtypes(output_tensor, input_tensor)
    source = input_tensor.contiguous()
    _exchange(owner, output_tensor, [(source, owner.rank * size)] * owner.size)


def shmem_alltoall(send_tensor_list: Sequence[Tensor], receive_tensor: Tensor, receive_list: Sequence[int]) -> None:
    """See the port."""
    owner, _ = place_of(receive_tensor, "receive_tensor")
    if not len(send_tensor_list) == len(receive_list) == owner.size:
        raise ValueError(
            f"{len(send_tensor_list)} tensors to send and {len(receive_list)} sizes to receive: expected one for each "
            f"of {owner.size} ranks"
        )
    _check_dtypes(receive_tensor, *send_tensor_list)
    sent = [one.numel() for one in send_tensor_list]
    table = owner.segment.publish([receive_tensor.numel(), *sent, *receive_list])
    _check_table(table)
    # Behind what ranks before this one send there.
    expected = [row[1 + owner.size :] for row in table]
    starts = [sum(sizes[: owner.rank]) for sizes in expected]
    _exchange(owner, receive_tensor, [(one.contiguous(), at) for one, at in zip(send_tensor_list, starts, strict=True)])


def _check_dtypes(output: Tensor, *inputs: Tensor) -> None:
    for one in inputs:
        if one.dtype != output.dtype:
            raise ValueError(f"dtypes of input and output differ: {one.dtype} and {output.dtype}")


def _check_table(table: list[list[int]]) -> None:
    """Holds what ranks send to what others expect, by what all have published: room, sizes sent, sizes expected."""
    ranks = range(len(table))
    for source, target in itertools.product(ranks, ranks):
        sent, expected = table[source][1 + target], table[target][1 + len(table) + source]
        if sent != expected:
            raise ValueError(f"rank {source} sends {sent} elements to rank {target}, which expects {expected}")
    for rank, (room, *sizes) in enumerate(table):
        coming = sum(sizes[len(table) :])
        if coming > room:
            raise ValueError(f"{coming} elements come to rank {rank}, whose receive_tensor has room for {room}")


def _exchange(owner: Owner, output: Tensor, parts: list[tuple[Tensor, int]]) -> None:
    """Writes to each rank its part at its place, and returns when all ranks' parts are here."""
    # Nobody writes before everybody has read what the last exchange brought.
    owner.barrier()
    for step in range(owner.size):
        # Each begins with another rank.
        target = (owner.rank + step) % owner.size
        source, place = parts[target]
        shmem_put_with_signal(output, place, source, 0, source.numel(), owner.arrivals, 0, 1, "add", target)
    shmem_wait_for_signal(owner.arrivals, 0, owner.size)
    owner.arrivals.zero_()
