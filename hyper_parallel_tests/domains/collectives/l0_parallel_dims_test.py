"""Degrees of parallelism against the size of the world."""

from __future__ import annotations

import itertools
import math

import pytest

from hyper_parallel_tests.harness import contract

NAMES = ("pp", "dp", "fsdp", "cp", "ep", "tp")
DEGREES = [
    dict(zip(NAMES, degrees, strict=True))
    for degrees in itertools.product((1, 2, 3, 4), repeat=len(NAMES))
    if math.prod(degrees) <= 1024
]


@contract("COL-0-03")
def test_degrees_multiply_to_the_world(engine):
    """Degrees whose product is the world are kept as they were given."""
    for degrees in DEGREES:
        dims = engine.parallel_dims(math.prod(degrees.values()), **degrees)
        assert dims.degrees == degrees
        assert dims.world_size == math.prod(dims.degrees.values())


@contract("COL-0-03")
@pytest.mark.parametrize("computed", NAMES)
def test_one_degree_is_computed(engine, computed):
    """A degree of -1 becomes what the others leave of the world."""
    for degrees in DEGREES:
        dims = engine.parallel_dims(math.prod(degrees.values()), **{**degrees, computed: -1})
        assert dims.degrees == degrees


@contract("COL-0-03")
@pytest.mark.parametrize(
    ("world", "degrees", "product"),
    [
        (8, {"dp": 3, "tp": 2}, 6),
        (8, {"dp": 2, "tp": 2}, 4),
        (8, {"dp": 4, "tp": 4}, 16),
        (8, {"dp": -1, "tp": 3}, 3),
        (8, {"dp": -1, "tp": 16}, 16),
        (6, {"pp": 2, "fsdp": -1, "ep": 2}, 4),
    ],
    ids=["unrelated", "too-small", "too-large", "not-a-divisor", "larger-divisor", "hidden-among-three"],
)
def test_product_that_cannot_match(engine, world, degrees, product):
    """A product that cannot match the world is refused, and the message names both numbers."""
    with pytest.raises(ValueError, match=rf"\b{product}\b.*\b{world}\b|\b{world}\b.*\b{product}\b"):
        engine.parallel_dims(world, **degrees)


@contract("COL-0-03")
@pytest.mark.parametrize("degree", [0, -2])
def test_impossible_degree(engine, degree):
    """A degree that is neither positive nor -1 is refused, and the message names the dimension."""
    with pytest.raises(ValueError, match="cp"):
        engine.parallel_dims(8, dp=8, cp=degree)


@contract("COL-0-03")
def test_only_one_degree_can_be_computed(engine):
    """Two degrees of -1 are refused, and the message names both dimensions."""
    with pytest.raises(ValueError, match="dp.*tp"):
        engine.parallel_dims(8, dp=-1, tp=-1)


@contract("COL-0-03")
def test_mesh_has_the_degrees(engine):
    """The mesh of the degrees fills the world, outermost pp, innermost tp, without the degrees of one."""
    for rank in range(8):
        with engine.simulated_world(rank, 8):
            mesh = engine.parallel_dims(8, tp=2, pp=2, fsdp=-1).build_mesh("cpu")
            assert mesh.mesh_dim_names == ("pp", "fsdp", "tp")
            pair = rank - rank % 2
            assert engine.get_process_group_ranks(mesh.get_group("tp")) == [pair, pair + 1]
            assert engine.get_process_group_ranks(mesh.get_group("pp")) == [rank % 4, rank % 4 + 4]


@contract("COL-0-02")
@pytest.mark.parametrize("order", itertools.permutations(("dp", "cp", "tp")), ids="-".join)
def test_mesh_does_not_depend_on_the_order_of_degrees(engine, order):
    """However the degrees are listed, every rank has the same coordinate and the same groups."""
    degrees = {"dp": 2, "cp": 3, "tp": 2}
    with engine.simulated_world(7, 12):
        mesh = engine.parallel_dims(12, **{name: degrees[name] for name in order}).build_mesh("cpu")
        assert mesh.mesh_dim_names == ("dp", "cp", "tp")
        assert tuple(mesh.get_coordinate()) == (1, 0, 1)
