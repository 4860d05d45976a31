"""Which rank holds an element, for the placements that engines use."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from hyper_parallel_tests.harness.judging.shards import Shards


def layout(mesh: list, *placements) -> Shards:
    """Of a DTensor-like thing on `mesh`, nested lists of ranks."""
    return Shards.of(SimpleNamespace(device_mesh=SimpleNamespace(mesh=torch.tensor(mesh)), placements=placements))


def test_plain_tensor_has_no_layout():
    """Only what has placements and a mesh lies in shards."""
    assert Shards.of(torch.ones(2)) is None


@pytest.mark.parametrize(("rows", "ranks"), [(8, 4), (7, 4), (5, 4), (3, 4), (17, 8), (1, 2)])
def test_rows_lie_as_torch_chunk_cuts_them(rows, ranks):
    """Every row is with the rank to which torch.chunk gives it, uneven and missing pieces included."""
    sharded = layout(list(range(ranks)), Shard(0))
    expected = [(rank,) for rank, piece in enumerate(torch.arange(rows).chunk(ranks)) for _ in piece]
    assert [sharded.holders((row, 0), (rows, 2)) for row in range(rows)] == expected


def test_columns_and_ranks_in_any_order():
    """The tensor dimension and the mesh's own order of ranks count."""
    sharded = layout([5, 2], Shard(1))
    assert [sharded.holders((0, column), (3, 4)) for column in range(4)] == [(5,), (5,), (2,), (2,)]


def test_replicas_hold_alike():
    """With replication every replica is named, with partial sums too."""
    assert layout([0, 1, 2], Replicate()).holders((0,), (4,)) == (0, 1, 2)
    assert layout([0, 1, 2], Partial()).holders((0,), (4,)) == (0, 1, 2)
    assert layout([[0, 1], [2, 3]], Replicate(), Shard(0)).holders((3,), (4,)) == (1, 3)


def test_two_cuts_of_one_dimension_nest():
    """Two plain cuts of one dimension go from the outer mesh dimension inwards."""
    sharded = layout([[0, 1], [2, 3]], Shard(0), Shard(0))
    assert [sharded.holders((row,), (8,)) for row in range(8)] == [(0,)] * 2 + [(1,)] * 2 + [(2,)] * 2 + [(3,)] * 2


def test_a_strided_cut_comes_after_the_plain_one():
    """FSDP over TP cuts by TP first: the data-parallel cut is inside each TP part, though listed first."""
    sharded = layout([[0, 1], [2, 3]], _StridedShard(0, split_factor=2), Shard(0))
    assert [sharded.holders((row,), (8,)) for row in range(8)] == [(0,)] * 2 + [(2,)] * 2 + [(1,)] * 2 + [(3,)] * 2


def test_a_scalar_has_no_index():
    """A replicated scalar is with every rank."""
    assert layout([0, 1], Replicate()).holders((), ()) == (0, 1)


def test_describe_reads_well():
    """One rank or several, and how the tensor lies."""
    assert layout([0, 1], Shard(0)).describe((3,), (4,)) == "held by rank 1 as (Shard(dim=0),)"
    assert layout([0, 1], Replicate()).describe((3,), (4,)) == "held by ranks 0, 1 as (Replicate(),)"
