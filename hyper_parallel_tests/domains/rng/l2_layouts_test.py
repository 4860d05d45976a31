"""Random tensors over a mesh of two dimensions."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.rng.streams import SEED, single_card, untouched_generators
from hyper_parallel_tests.harness import assert_equal, contract

ROWS, COLUMNS = 6, 8
# For each mesh dimension the tensor dimension that it divides, or None.
LAYOUTS = {
    "replicas_of_rows": (None, 0),
    "rows_by_columns": (0, 1),
    "columns_by_rows": (1, 0),
}


@pytest.fixture(autouse=True)
def generators():
    with untouched_generators():
        yield


@contract("RN-2-01")
@pytest.mark.parametrize("dims", LAYOUTS.values(), ids=LAYOUTS)
def test_part_over_two_dimensions(engine, world, dims):
    """Each rank holds its part of the single card's tensor; replicas hold the same one."""
    mesh = world.mesh(dp=2, tp=2)
    engine.manual_seed(SEED, mesh)
    placements = [engine.Replicate() if dim is None else engine.Shard(dim) for dim in dims]
    found = engine.randn((ROWS, COLUMNS), device_mesh=mesh, placements=placements)
    part = single_card(world, torch.randn, ROWS, COLUMNS)
    for index, dim in zip(divmod(world.rank, 2), dims, strict=True):
        part = part if dim is None else part.chunk(2, dim)[index]
    assert_equal(found.to_local(), part, what="part")


@contract("RN-2-01")
def test_first_rank_of_two_dimensions(engine, world):
    """The seed of the rank that is first in both dimensions holds for all."""
    engine.manual_seed(SEED + world.rank, world.mesh(dp=2, tp=2))
    assert_equal(torch.rand(5, device=world.device), single_card(world, torch.rand, 5), what="numbers")
