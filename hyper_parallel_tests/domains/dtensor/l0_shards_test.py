"""Shard arithmetic: which rank holds which part, for every size and number of ranks."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import example, given

from hyper_parallel_tests.domains.dtensor.properties import PROFILE, divisions
from hyper_parallel_tests.domains.dtensor.reference import coordinates, part
from hyper_parallel_tests.harness import contract

SIZES = range(18)
RANKS = range(1, 9)
KINDS = {
    "even": lambda size, ranks: size % ranks == 0 and size > 0,
    "uneven": lambda size, ranks: size % ranks != 0 and -(-size // ranks) * (ranks - 1) < size,
    "empty_shards": lambda size, ranks: size == 0 or -(-size // ranks) * (ranks - 1) >= size > 0 and ranks > 1,
}


def line(size: int, ranks: int) -> list[tuple[int, int]]:
    """Start and end of each rank's part: ceil(size / ranks) each, as long as there is something left."""
    step = -(-size // ranks)
    return [(min(rank * step, size), min((rank + 1) * step, size)) for rank in range(ranks)]


def of_kind(kind: str, ranks: int) -> list[int]:
    return [size for size in SIZES if KINDS[kind](size, ranks)]


def placements(engine, dims: list[int | None]) -> list:
    return [engine.Replicate() if dim is None else engine.Shard(dim) for dim in dims]


@contract("DT-0-01")
@pytest.mark.parametrize("kind", KINDS)
def test_shape_and_offset_of_every_part(engine, kind):
    """For every size up to 17 and up to 8 ranks, parts follow one another without gap or overlap."""
    for ranks in RANKS:
        for rank in range(ranks):
            with engine.simulated_world(rank, ranks):
                mesh = engine.init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
                for size in of_kind(kind, ranks):
                    found = engine.compute_local_shape_and_global_offset((3, size), mesh, [engine.Shard(1)])
                    start, end = line(size, ranks)[rank]
                    assert tuple(found) == ((3, end - start), (0, start)), f"rank {rank} of {ranks}, size {size}"


@contract("DT-0-01")
@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_part(engine, kind):
    """What a rank gets of a distributed tensor is what lies at its offset, and the tensor keeps its full shape."""
    for ranks in RANKS:
        for rank in range(ranks):
            with engine.simulated_world(rank, ranks):
                mesh = engine.init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
                for size in of_kind(kind, ranks):
                    tensor = engine.distribute_tensor(torch.arange(size), mesh, [engine.Shard(0)])
                    assert tensor.to_local().tolist() == list(range(*line(size, ranks)[rank])), f"{size} on {ranks}"
                    assert tuple(tensor.shape) == (size,)


@contract("DT-0-01")
@PROFILE
@given(divisions())
@example(((2,), (3,), [-1]))
@example(((3, 2), (4,), [0, 0]))
@example(((2, 2), (1,), [0, 0]))
def test_parts_are_disjoint_and_cover(engine, division):
    """On any mesh each element is held once per replica, and the arithmetic agrees with the values."""
    shape, size, dims = division
    full = torch.arange(math.prod(size)).reshape(size)
    count: Counter[int] = Counter()
    for rank, coordinate in enumerate(coordinates(shape)):
        with engine.simulated_world(rank, math.prod(shape)):
            mesh = engine.init_device_mesh("cpu", shape, mesh_dim_names=tuple("abc"[: len(shape)]))
            local = engine.distribute_tensor(full, mesh, placements(engine, dims)).to_local()
            local_shape, _ = engine.compute_local_shape_and_global_offset(
                size, mesh, placements(engine, [dim if dim is None else dim % len(size) for dim in dims])
            )
        assert local.tolist() == part(full, shape, coordinate, placements(engine, dims)).tolist()
        assert tuple(local.shape) == tuple(local_shape)
        count.update(local.flatten().tolist())
    replicas = math.prod(ranks for ranks, dim in zip(shape, dims, strict=True) if dim is None)
    assert count == dict.fromkeys(range(full.numel()), replicas)
