"""Rank arithmetic of device meshes of any shape in simulated worlds of up to 1024 ranks: property tests."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hyper_parallel_tests.harness import contract, properties

LARGEST = 1024
NAMES = ("a", "b", "c", "d")
# Each example makes a mesh or two of hundreds of ranks.
PROFILE = settings(properties.PROFILE, max_examples=20)


@st.composite
def places(draw: Any) -> tuple[tuple[int, ...], int]:
    """Shape of a mesh of one to four dimensions, and a rank of it."""
    shape: tuple[int, ...] = ()
    for _ in range(draw(st.integers(1, 4))):
        shape = (*shape, draw(st.integers(1, LARGEST // math.prod(shape))))
    return shape, draw(st.integers(0, math.prod(shape) - 1))


@st.composite
def requests(draw: Any) -> tuple[tuple[int, ...], int, list[list[int]]]:
    """A place, and parts of the mesh in the order in which they are asked for: some of its dimensions, ascending."""
    shape, rank = draw(places())
    dims = st.integers(0, len(shape) - 1)
    parts = st.lists(dims, min_size=1, unique=True).map(sorted)
    return shape, rank, draw(st.lists(parts, min_size=1, max_size=4))


def place_of(rank: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Coordinate of a rank where the last dimension runs fastest."""
    place = []
    for size in reversed(shape):
        rank, index = divmod(rank, size)
        place.append(index)
    return tuple(reversed(place))


def group_of(rank: int, dim: int, shape: tuple[int, ...]) -> list[int]:
    """The ranks that differ from this one along `dim` alone, ascending."""
    stride = math.prod(shape[dim + 1 :])
    first = rank - place_of(rank, shape)[dim] * stride
    return [first + index * stride for index in range(shape[dim])]


def groups_of(engine: Any, mesh: Any) -> list[list[int]]:
    return [engine.get_process_group_ranks(mesh.get_group(dim)) for dim in range(mesh.ndim)]


def mesh_of(engine: Any, shape: tuple[int, ...]) -> Any:
    return engine.init_device_mesh("cpu", shape, mesh_dim_names=NAMES[: len(shape)])


# What an engine computes here without any communication is ready at once; the limit leaves room for a busy machine.
quickly = pytest.mark.watchdog(20)


@contract("COL-0-01")
@quickly
@PROFILE
@given(places(), st.integers(0, 3), st.integers(0, LARGEST))
@example(((LARGEST,), LARGEST - 1), 0, 0)
@example(((1, 511, 2), 1021), 1, 7)
@example(((4, 8, 8, 4), 777), 3, 1)
def test_any_rank_is_in_row_major_place_and_in_its_groups(engine, place, dim, peer):
    """Coordinates are row-major, groups hold the ranks that differ along one dimension alone, and members agree."""
    shape, rank = place
    expected = [group_of(rank, one, shape) for one in range(len(shape))]
    with engine.simulated_world(rank, math.prod(shape)):
        mesh = mesh_of(engine, shape)
        assert tuple(mesh.get_coordinate()) == place_of(rank, shape)
        assert [mesh.get_local_rank(one) for one in range(mesh.ndim)] == list(place_of(rank, shape))
        assert groups_of(engine, mesh) == expected
    # Each member sees the same group, in the same order: so the groups of a dimension part the world.
    group = expected[dim % len(shape)]
    with engine.simulated_world(group[peer % len(group)], math.prod(shape)):
        assert groups_of(engine, mesh_of(engine, shape))[dim % len(shape)] == group


@contract("COL-0-02")
@quickly
@PROFILE
@given(requests())
@example(((2, 2, 2), 5, [[1, 2], [0, 1], [2]]))
@example(((511, 2), 1, [[1], [0]]))
def test_groups_do_not_depend_on_what_was_asked_before(engine, request_):
    """After any sequence of slices and flattenings every dimension has the group that it has by itself."""
    shape, rank, parts = request_
    with engine.simulated_world(rank, math.prod(shape)):
        mesh = mesh_of(engine, shape)
        for number, part in enumerate(parts):
            names = tuple(NAMES[dim] for dim in part)
            found = groups_of(engine, mesh[names])
            assert found == [group_of(rank, dim, shape) for dim in part]
            if len(part) > 1:
                flat = engine.flatten_mesh(mesh[names], f"flat_{number}")
                assert flat.size() == math.prod(shape[dim] for dim in part)
                assert flat.get_local_rank() == rank_within(rank, part, shape)
        assert groups_of(engine, mesh) == [group_of(rank, dim, shape) for dim in range(len(shape))]


def rank_within(rank: int, part: list[int], shape: tuple[int, ...]) -> int:
    """Row-major number of a rank among those of a part of the dimensions."""
    number = 0
    for dim in part:
        number = number * shape[dim] + place_of(rank, shape)[dim]
    return number
