"""Which ranks of a mesh share a seed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from hyper_parallel_tests.harness import contract

SHAPE = {"pp": 2, "dp": 2, "tp": 2}


def seeds(engine: Any, seed: int, *distinct: Any) -> dict[tuple[int, ...], int]:
    """The seed of each coordinate (pp, dp, tp)."""
    found = {}
    for rank in range(8):
        with engine.simulated_world(rank, 8):
            mesh = engine.init_device_mesh("cpu", tuple(SHAPE.values()), mesh_dim_names=tuple(SHAPE))
            found[tuple(mesh.get_coordinate())] = engine.parallel_seed(seed, mesh, *distinct)
    return found


@contract("RN-0-01")
@pytest.mark.parametrize(
    "distinct",
    [chosen for count in range(4) for chosen in itertools.combinations(SHAPE, count)],
    ids=lambda chosen: "-".join(chosen) or "none",
)
def test_seeds_differ_along_the_chosen_dimensions_only(engine, distinct):
    """Ranks have one seed if and only if they agree in all chosen dimensions."""
    found = seeds(engine, 42, distinct)
    chosen = [list(SHAPE).index(name) for name in distinct]
    for (one, first), (other, second) in itertools.combinations(found.items(), 2):
        assert (first == second) == all(one[dim] == other[dim] for dim in chosen), (one, other)


@contract("RN-0-01")
def test_pipeline_stages_differ_by_default(engine):
    """Unless told otherwise stages have seeds of their own, and all ranks of a stage the same one."""
    assert seeds(engine, 42) == seeds(engine, 42, ("pp",))


@contract("RN-0-01")
def test_first_rank_has_the_seed_itself(engine):
    """The rank of index 0 in all chosen dimensions has the seed that was given, whatever they are."""
    assert seeds(engine, 42, ("pp", "tp"))[0, 0, 0] == 42
    assert seeds(engine, 42, ("tp", "pp")) != seeds(engine, 42, ("pp", "tp"))


@contract("RN-0-01")
def test_missing_dimension_does_not_count(engine):
    """A dimension that the mesh has not makes no difference."""
    assert seeds(engine, 42, ("ep", "pp")) == seeds(engine, 42, ("pp",))


@contract("RN-0-01")
def test_largest_seed_wraps_around(engine):
    """A sum beyond 64 bits starts again at zero instead of being an error on some ranks."""
    found = seeds(engine, 2**64 - 1, ("pp",))
    assert set(found.values()) == {2**64 - 1, 0}
