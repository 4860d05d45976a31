"""Tokens and heads on their way between ranks, as rows of dimension 0.

``pack_*`` brings a tensor into the rows that an all-to-all sends, ``unpack_*`` what it brought into a tensor. What
is whole is in the order of the sequence, whatever the split.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import pad

from hyper_parallel_tests.engines.torch_native.context_parallel.layout import heads_per_rank
from hyper_parallel_tests.engines.torch_native.context_parallel.split import Split, split_over
from hyper_parallel_tests.engines.torch_native.differentiable_collectives import (
    differentiable_all_gather,
    differentiable_all_to_all,
)


def pack_heads(tensor: Tensor, seq_dim: int, head_dim: int, split: Split) -> Tensor:
    """(own tokens, all heads) -> rows (rank, own token) of that rank's heads."""
    rows = torch.movedim(tensor, (seq_dim, head_dim), (0, 1))
    each = heads_per_rank("the tensor", rows.shape[1], split.size)
    return rows.unflatten(1, (split.size, each)).transpose(0, 1).flatten(0, 1).contiguous()


def unpack_heads(rows: Tensor, seq_dim: int, head_dim: int, split: Split) -> Tensor:
    """The inverse of ``pack_heads``."""
    by_rank = rows.unflatten(0, (split.size, split.lengths[split.rank]))
    return torch.movedim(by_rank.transpose(0, 1).flatten(1, 2), (0, 1), (seq_dim, head_dim))


def pack_sequence(tensor: Tensor, seq_dim: int, head_dim: int, split: Split) -> Tensor:
    """(all tokens, own heads) -> rows, the tokens of one rank after the other's."""
    return torch.movedim(tensor, (seq_dim, head_dim), (0, 1)).index_select(0, split.held.to(tensor.device))


def unpack_sequence(rows: Tensor, seq_dim: int, head_dim: int, split: Split) -> Tensor:
    """The inverse of ``pack_sequence``."""
    return torch.movedim(rows.index_select(0, split.natural.to(rows.device)), (0, 1), (seq_dim, head_dim))


def sequence_to_heads(tensor: Tensor, seq_dim: int, head_dim: int, split: Split) -> Tensor:
    """(own tokens, all heads) -> (all tokens, own heads). Gradient: the way back."""
    rows = pack_heads(tensor, seq_dim, head_dim, split)
    arrived = differentiable_all_to_all(rows, split.lengths, sent_to_each(split), group=split.group)
    return unpack_sequence(arrived, seq_dim, head_dim, split)


def heads_to_sequence(tensor: Tensor, seq_dim: int, head_dim: int, split: Split) -> Tensor:
    """(all tokens, own heads) -> (own tokens, all heads). Gradient: the way back."""
    rows = pack_sequence(tensor, seq_dim, head_dim, split)
    arrived = differentiable_all_to_all(rows, sent_to_each(split), split.lengths, group=split.group)
    return unpack_heads(arrived, seq_dim, head_dim, split)


def sent_to_each(split: Split) -> list[int]:
    """Rows that this rank exchanges with each rank, when each gets some of the heads of its tokens."""
    return [split.lengths[split.rank]] * split.size


def pack_own(tensor: Tensor, seq_dim: int, split: Split) -> Tensor:
    """Own tokens -> as many rows as the longest part has: an all-gather moves equal parts."""
    rows = tensor.movedim(seq_dim, 0)
    return pad(rows, (0, 0) * (rows.ndim - 1) + (0, max(split.lengths) - len(rows))).contiguous()


def unpack_own(rows: Tensor, seq_dim: int, split: Split) -> Tensor:
    """The inverse of ``pack_own``."""
    return rows[: split.lengths[split.rank]].movedim(0, seq_dim)


def pack_all(tensor: Tensor, seq_dim: int, split: Split) -> Tensor:
    """All tokens -> the rows of all ranks' ``pack_own``, zeros where these are filled up."""
    rows = tensor.movedim(seq_dim, 0)
    filled = rows.new_zeros(split.size * max(split.lengths), *rows.shape[1:])
    return filled.index_copy_(0, _places(split).to(tensor.device), rows)


def unpack_all(rows: Tensor, seq_dim: int, split: Split) -> Tensor:
    """The inverse of ``pack_all``."""
    return rows.index_select(0, _places(split).to(rows.device)).movedim(0, seq_dim)


def _places(split: Split) -> Tensor:
    """The row of each position among the filled parts of all ranks."""
    longest = max(split.lengths)
    rows = [rank * longest + torch.arange(length) for rank, length in enumerate(split.lengths)]
    return torch.cat(rows)[split.natural]


def gather_sequence(tensor: Tensor, seq_dim: int, split: Split) -> Tensor:
    """Own tokens -> all tokens, in the order of the sequence. Gradient: the sum over the ranks of this part's."""
    return unpack_all(differentiable_all_gather(pack_own(tensor, seq_dim, split), 0, group=split.group), seq_dim, split)


def context_parallel_unshard(
    tensor: Tensor,
    device_mesh: DeviceMesh,
    seq_dim: int,
    *,
    load_balance: bool = False,
    seq_len: int | None = None,
) -> Tensor:
    """See the port."""
    return gather_sequence(tensor, seq_dim, split_over(device_mesh, tensor.shape[seq_dim], seq_len, load_balance))
