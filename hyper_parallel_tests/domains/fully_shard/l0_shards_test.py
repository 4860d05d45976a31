"""Shape, padding, content and placement of shards, for sizes that do not divide."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.fully_shard.reference import part
from hyper_parallel_tests.harness import contract

SIZES = (1, 2, 3, 5, 7, 8, 15, 16, 17)


def by_kind(ranks: int) -> dict[str, list[int]]:
    """The sizes that divide over so many ranks, that leave a shorter last shard, and that leave a rank no row."""
    found: dict[str, list[int]] = {}
    for size in SIZES:
        uneven = "odd" if size > (ranks - 1) * math.ceil(size / ranks) else "empty_shards"
        found.setdefault("even" if size % ranks == 0 else uneven, []).append(size)
    return found


each_world = pytest.mark.parametrize(
    ("ranks", "sizes"),
    [
        pytest.param(ranks, sizes, id=f"{ranks}-{kind}")
        for ranks in (1, 2, 3, 4, 8)
        for kind, sizes in by_kind(ranks).items()
    ],
)


class Weight(nn.Module):
    """One parameter of a given shape, whose elements count from 0."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(math.prod(shape), dtype=torch.float32).view(shape))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.weight.sum()


def shard(engine, mesh, *shape: int, **options):
    """The one managed parameter of a wrapped Weight."""
    (parameter,) = engine.managed_parameters(engine.fully_shard(Weight(*shape), mesh=mesh, **options))
    return parameter


def line_of(engine, size: int):
    return engine.init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))


@contract("FS-0-02")
@each_world
def test_shards_are_the_chunks(engine, ranks, sizes):
    """On every rank, for every size, the shard is torch.chunk's part, possibly short or empty."""
    for rank in range(ranks):
        with engine.simulated_world(rank, ranks):
            mesh = line_of(engine, ranks)
            for size in sizes:
                parameter = shard(engine, mesh, size, 3)
                expected = part(Weight(size, 3).weight, dim=0, index=rank, count=ranks)
                assert parameter.full_shape == (size, 3)
                assert parameter.shard.shape == expected.shape
                assert torch.equal(parameter.shard, expected)


@contract("FS-0-02")
@each_world
def test_shards_are_padded_alike_on_all_ranks(engine, ranks, sizes):
    """In collectives each shard counts as long as the longest one, ceil(size / ranks) rows."""
    for rank in range(ranks):
        with engine.simulated_world(rank, ranks):
            mesh = line_of(engine, ranks)
            assert [shard(engine, mesh, size, 3).padded_shape for size in sizes] == [
                (math.ceil(size / ranks), 3) for size in sizes
            ]


@contract("FS-0-02")
@pytest.mark.parametrize(
    ("place", "shard_dim", "shape"),
    [
        pytest.param(lambda engine: engine.Shard(0), 0, (4, 6), id="shard_0"),
        pytest.param(lambda engine: engine.Shard(1), 1, (8, 3), id="shard_1"),
        pytest.param(lambda engine: engine.Shard(-1), 1, (8, 3), id="shard_last"),
        pytest.param(lambda engine: engine.Replicate(), None, (8, 6), id="replicate"),
        pytest.param(lambda engine: None, 0, (4, 6), id="none"),
    ],
)
def test_placement_function_places(engine, place, shard_dim, shape):
    """Shard(dim), Replicate and None from shard_placement_fn give the shard of that placement."""
    with engine.simulated_world(rank=1, world_size=2):
        parameter = shard(engine, line_of(engine, 2), 8, 6, shard_placement_fn=lambda _: place(engine))
        assert parameter.shard_dim == shard_dim
        assert parameter.shard.shape == shape
        assert torch.equal(parameter.shard, part(Weight(8, 6).weight, dim=shard_dim, index=1, count=2))


@contract("FS-0-02")
@pytest.mark.parametrize("rows", [6, 5], ids=["even", "odd"])
def test_hybrid_mesh_shards_over_its_columns(engine, rows):
    """On a (replicate, shard) mesh the coordinate along shard alone decides a rank's part."""
    for rank in range(4):
        with engine.simulated_world(rank, world_size=4):
            mesh = engine.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            expected = part(Weight(rows, 3).weight, dim=0, index=rank % 2, count=2)
            assert torch.equal(shard(engine, mesh, rows, 3).shard, expected)


@contract("FS-0-02")
@pytest.mark.parametrize("dim", [2, -3])
def test_dimension_out_of_range_is_an_error(engine, dim):
    """Sharding a matrix on a dimension that it does not have fails and says which."""
    with (
        engine.simulated_world(rank=0, world_size=2),
        pytest.raises(Exception, match=r"[Ss]hard dim|[Dd]imension"),
    ):
        shard(engine, line_of(engine, 2), 4, 4, shard_placement_fn=lambda _: engine.Shard(dim))


@contract("FS-0-02")
def test_uneven_inner_dimension_is_an_error(engine):
    """A dimension other than 0 that does not divide fails and says so, instead of dropping the rest."""
    with (
        engine.simulated_world(rank=0, world_size=2),
        pytest.raises(Exception, match="uneven sharding on dim 1"),
    ):
        shard(engine, line_of(engine, 2), 4, 5, shard_placement_fn=lambda _: engine.Shard(1))
