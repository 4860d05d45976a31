"""How a sequence is divided over ranks, and which heads and tokens meet where."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh


def context_parallel_indices(seq_len: int, cp_size: int, *, load_balance: bool = False) -> list[Tensor]:
    """See the port.

    Under a causal mask the query at position p has p + 1 keys. Chunks i and 2n - 1 - i are equally far from the
    middle, so each such pair has the same sum of positions. Source: the zig-zag of ring-flash-attention, PyTorch's
    head-tail load balancer.
    """
    if seq_len < 0 or cp_size < 1:
        raise ValueError(f"cannot divide {seq_len} tokens over {cp_size} ranks: expected at least 0 over at least 1")
    if not load_balance:
        return list(torch.arange(seq_len).tensor_split(cp_size))
    chunks = torch.arange(seq_len).tensor_split(2 * cp_size)
    return [torch.cat((chunks[rank], chunks[-1 - rank])) for rank in range(cp_size)]


@dataclass(frozen=True)
class Split:
    """One sequence over the ranks of a group.

    Attributes:
        group: the ranks.
        rank: this one, in the group.
        indices: the positions that each rank holds.
    """

    group: ProcessGroup
    rank: int
    indices: list[Tensor]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.indices)

    @cached_property
    def lengths(self) -> list[int]:
        """How many tokens each rank holds."""
        return [len(part) for part in self.indices]

    @cached_property
    def held(self) -> Tensor:
        """Positions in the order in which the ranks, one after the other, hold them."""
        return torch.cat(self.indices)

    @cached_property
    def natural(self) -> Tensor:
        """The inverse of ``held``: where among the ranks' tokens each position is."""
        return self.held.argsort()

    @cached_property
    def everything(self) -> Tensor:
        """All positions, in the order of the sequence."""
        return torch.arange(len(self.held))

    @property
    def own(self) -> Tensor:
        """The positions that this rank holds."""
        return self.indices[self.rank]


def split_over(device_mesh: DeviceMesh, tokens: int, seq_len: int | None, load_balance: bool) -> Split:
    """The split of a sequence of which this rank holds ``tokens``.

    Raises:
        ValueError: the mesh has more than one dimension, or the rank should hold another number of tokens.
    """
    if device_mesh.ndim != 1:
        raise ValueError(f"context parallelism is over one mesh dimension, got {device_mesh}: take a submesh of it")
    size, rank = device_mesh.size(), device_mesh.get_local_rank()
    whole = tokens * size if seq_len is None else seq_len
    indices = context_parallel_indices(whole, size, load_balance=load_balance)
    if len(indices[rank]) != tokens:
        raise ValueError(
            f"rank {rank} of {size} holds {len(indices[rank])} tokens of a sequence of {whole}, got {tokens}; "
            "divide it by context_parallel_shard, and tell seq_len where it does not divide evenly"
        )
    return Split(device_mesh.get_group(), rank, indices)


def even_split(group: ProcessGroup, tokens: int) -> Split:
    """The split of a sequence of which each rank of ``group`` holds a chunk of ``tokens``."""
    size = dist.get_world_size(group)
    return Split(group, dist.get_rank(group), context_parallel_indices(tokens * size, size))


def context_parallel_shard(
    tensor: Tensor, device_mesh: DeviceMesh, seq_dim: int, *, load_balance: bool = False
) -> Tensor:
    """See the port."""
    parts = context_parallel_indices(tensor.shape[seq_dim], device_mesh.size(), load_balance=load_balance)
    return tensor.index_select(seq_dim, parts[device_mesh.get_local_rank()].to(tensor.device))
