"""Placements on meshes of two and three dimensions: the slice that each rank holds."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from hyper_parallel_tests.domains.dtensor.reference import coordinates, divide, part
from hyper_parallel_tests.harness import contract

MESHES = [(2, 3), (3, 2), (4, 2), (1, 3), (3, 3)]
SIZES = {"even": lambda ranks: [ranks, 2 * ranks], "uneven": lambda ranks: (5, 7, 9, 13)}


def by_order(engine, order: str, mesh_shape: tuple[int, int], coordinate: tuple[int, int]):
    """Placements by which both mesh dimensions divide dimension 0 in this order, and the cuts that they stand for."""
    (outer, inner), (i, j) = mesh_shape, coordinate
    if order == "left_first":
        return [engine.Shard(0), engine.Shard(0)], [(0, outer, i), (0, inner, j)]
    return [engine.StridedShard(0, split_factor=inner), engine.Shard(0)], [(0, inner, j), (0, outer, i)]


@contract("DT-0-02")
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("order", ["left_first", "right_first"])
def test_two_mesh_dimensions_divide_one_tensor_dimension(engine, order, kind):
    """Each rank holds the slice that cutting in the given order leaves it."""
    for mesh_shape in MESHES:
        ranks = math.prod(mesh_shape)
        for rank, coordinate in enumerate(coordinates(mesh_shape)):
            with engine.simulated_world(rank, ranks):
                mesh = engine.init_device_mesh("cpu", mesh_shape, mesh_dim_names=("a", "b"))
                for size in SIZES[kind](ranks):
                    full = torch.arange(3 * size).reshape(size, 3)
                    placements, cuts = by_order(engine, order, mesh_shape, coordinate)
                    local = engine.distribute_tensor(full, mesh, placements).to_local()
                    assert local.tolist() == divide(full, cuts).tolist(), f"{size} on {mesh_shape}, rank {rank}"


@contract("DT-0-02")
@pytest.mark.parametrize("size", [(12, 6, 12), (5, 7, 3)], ids=["even", "uneven"])
@pytest.mark.parametrize("mesh_shape", [(2, 3), (2, 3, 2)], ids=str)
def test_mesh_dimensions_divide_different_tensor_dimensions(engine, mesh_shape, size):
    """Whichever tensor dimension each mesh dimension divides, each rank holds the expected slice."""
    full = torch.arange(math.prod(size)).reshape(size)
    kinds = [engine.Replicate(), *(engine.Shard(dim) for dim in range(3))]
    for rank, coordinate in enumerate(coordinates(mesh_shape)):
        with engine.simulated_world(rank, math.prod(mesh_shape)):
            mesh = engine.init_device_mesh("cpu", mesh_shape, mesh_dim_names=tuple("abc"[: len(mesh_shape)]))
            for placements in itertools.product(kinds, repeat=len(mesh_shape)):
                shards = [one for one in placements if one.is_shard()]
                if len(set(shards)) == len(shards):
                    local = engine.distribute_tensor(full, mesh, placements).to_local()
                    assert local.tolist() == part(full, mesh_shape, coordinate, placements).tolist(), str(placements)


@contract("DT-0-02")
@pytest.mark.parametrize("size", [(12, 6), (7, 5)], ids=["even", "uneven"])
def test_three_mesh_dimensions_divide_one_tensor_dimension(engine, size):
    """Three cuts of one dimension, and two of one around a cut of the other, leave the expected slice."""
    full, mesh_shape = torch.arange(math.prod(size)).reshape(size), (2, 3, 2)
    for rank, coordinate in enumerate(coordinates(mesh_shape)):
        with engine.simulated_world(rank, math.prod(mesh_shape)):
            mesh = engine.init_device_mesh("cpu", mesh_shape, mesh_dim_names=("a", "b", "c"))
            for dims in [(0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1)]:
                placements = [engine.Shard(dim) for dim in dims]
                local = engine.distribute_tensor(full, mesh, placements).to_local()
                assert local.tolist() == part(full, mesh_shape, coordinate, placements).tolist(), str(placements)
