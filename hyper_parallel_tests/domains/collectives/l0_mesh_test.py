"""Rank arithmetic of device meshes, in simulated worlds of up to 1024 ranks."""

from __future__ import annotations

import itertools
import math

import pytest

from hyper_parallel_tests.harness import contract

SMALL_SHAPES = [
    shape
    for ndim in (1, 2, 3, 4)
    for shape in itertools.product((1, 2, 3, 4), repeat=ndim)
    if math.prod(shape) in (4, 6, 12)
]
LARGE_SHAPES = [(1024,), (16, 64), (2, 16, 32), (4, 8, 8, 4), (2, 3, 5, 7), (1, 127, 2)]
REFUSAL = (ValueError, RuntimeError, KeyError)


def coordinates(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Coordinate of each rank: the last dimension runs fastest."""
    return list(itertools.product(*map(range, shape)))


def group_of(rank: int, dim: int, shape: tuple[int, ...]) -> list[int]:
    """Ranks that share all coordinates with ``rank`` except the one along ``dim``."""

    def others(coordinate: tuple[int, ...]) -> tuple[int, ...]:
        return coordinate[:dim] + coordinate[dim + 1 :]

    places = coordinates(shape)
    return [peer for peer, place in enumerate(places) if others(place) == others(places[rank])]


def groups(engine, mesh) -> list[list[int]]:
    return [engine.get_process_group_ranks(mesh.get_group(dim)) for dim in range(mesh.ndim)]


def seen_by(engine, rank: int, shape: tuple[int, ...], **options):
    """Coordinate, local ranks and groups of ``rank`` in the mesh of ``shape`` that fills the world."""
    with engine.simulated_world(rank, math.prod(shape)):
        mesh = engine.init_device_mesh("cpu", shape, **options)
        local_ranks = tuple(mesh.get_local_rank(dim) for dim in range(mesh.ndim))
        return tuple(mesh.get_coordinate()), local_ranks, groups(engine, mesh)


@contract("COL-0-01")
@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
def test_every_rank_of_a_small_mesh_is_in_row_major_place(engine, ndim):
    """Rank and coordinate correspond in row-major order, for every rank of every small mesh."""
    for shape in (shape for shape in SMALL_SHAPES if len(shape) == ndim):
        for rank, place in enumerate(coordinates(shape)):
            coordinate, local_ranks, _ = seen_by(engine, rank, shape)
            assert coordinate == place, f"rank {rank} of mesh {shape}"
            assert local_ranks == place, f"rank {rank} of mesh {shape}"


@contract("COL-0-01")
@pytest.mark.parametrize("shape", [(6,), (2, 4), (4, 3), (2, 3, 4), (2, 2, 2, 3)], ids=str)
def test_groups_of_a_dimension_partition_the_world(engine, shape):
    """Along each dimension every rank is in exactly one group, and all members see the same ordered group."""
    world = list(range(math.prod(shape)))
    found = [seen_by(engine, rank, shape)[2] for rank in world]
    for dim in range(len(shape)):
        distinct = {tuple(of_rank[dim]) for of_rank in found}
        assert sorted(itertools.chain(*distinct)) == world
        assert all(list(group) == sorted(group) and len(group) == shape[dim] for group in distinct)
        assert all(rank in of_rank[dim] for rank, of_rank in enumerate(found))


@contract("COL-0-01")
@pytest.mark.parametrize("shape", LARGE_SHAPES, ids=str)
def test_large_mesh(engine, shape):
    """In a world of up to 1024 ranks, ranks spread over it are in row-major place and in their groups."""
    world = math.prod(shape)
    # A few, since an engine may need seconds a mesh: the last one, and others with a different place in each dimension.
    for rank in {*range(97, world, 463), world - 1}:
        coordinate, local_ranks, found = seen_by(engine, rank, shape)
        assert coordinate == local_ranks == coordinates(shape)[rank]
        assert found == [group_of(rank, dim, shape) for dim in range(len(shape))]


@contract("COL-0-01")
def test_listed_ranks_fill_the_mesh_in_their_order(engine):
    """The i-th listed rank is in the i-th row-major place; a rank that is not listed has no coordinate."""
    listed = [6, 4, 2, 0, 1, 3]
    for place, rank in enumerate(listed):
        with engine.simulated_world(rank, 8):
            mesh = engine.init_device_mesh("cpu", (2, 3), rank_list=listed)
            assert mesh.mesh.flatten().tolist() == listed
            assert tuple(mesh.get_coordinate()) == divmod(place, 3)
    with engine.simulated_world(7, 8):
        assert engine.init_device_mesh("cpu", (2, 3), rank_list=listed).get_coordinate() is None


@contract("COL-0-02")
@pytest.mark.parametrize("order", itertools.permutations(("dp", "pp", "tp")), ids="-".join)
def test_groups_do_not_depend_on_the_order_of_requests(engine, order):
    """Whichever dimension is asked for first, each dimension's group is the same."""
    names, shape = ("pp", "dp", "tp"), (2, 3, 2)
    for rank in range(math.prod(shape)):
        with engine.simulated_world(rank, math.prod(shape)):
            mesh = engine.init_device_mesh("cpu", shape, mesh_dim_names=names)
            by_name = {name: engine.get_process_group_ranks(mesh.get_group(name)) for name in order}
            by_slice = {name: engine.get_process_group_ranks(mesh[name].get_group()) for name in order}
        expected = {name: group_of(rank, dim, shape) for dim, name in enumerate(names)}
        assert by_name == by_slice == expected


@contract("COL-0-02")
@pytest.mark.parametrize("pair", itertools.permutations([("pp", "dp"), ("dp", "tp")]), ids=str)
def test_flattened_groups_do_not_depend_on_the_order_of_requests(engine, pair):
    """Flattening overlapping parts gives the same groups in either order, and keeps the mesh's own."""
    names, shape = ("pp", "dp", "tp"), (2, 2, 2)
    found = {}
    with engine.simulated_world(5, 8):
        mesh = engine.init_device_mesh("cpu", shape, mesh_dim_names=names)
        for part in pair:
            flat = engine.flatten_mesh(mesh[part], "_".join(part))
            found[part] = engine.get_process_group_ranks(flat.get_group())
        assert groups(engine, mesh) == [group_of(5, dim, shape) for dim in range(3)]
    assert found == {("pp", "dp"): [1, 3, 5, 7], ("dp", "tp"): [4, 5, 6, 7]}


@contract("COL-0-02")
@pytest.mark.parametrize("first", ["row", "column"])
def test_meshes_made_earlier_do_not_change_the_groups(engine, first):
    """Whatever meshes and groups came before, a mesh has the groups it would have alone."""
    with engine.simulated_world(4, 6):
        if first == "row":
            engine.new_group([3, 4, 5])
            engine.init_device_mesh("cpu", (3, 2))
        else:
            engine.init_device_mesh("cpu", (6,))
            engine.new_group([1, 4])
        mesh = engine.init_device_mesh("cpu", (2, 3))
        assert groups(engine, mesh) == [[1, 4], [3, 4, 5]]


@contract("COL-0-04")
def test_duplicate_dimension_name(engine):
    """Two dimensions of one name are refused, and the message names it."""
    with engine.simulated_world(0, 4), pytest.raises(REFUSAL, match="'tp'"):
        engine.init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "tp"))


@contract("COL-0-04")
@pytest.mark.parametrize("access", ["slice", "group", "slice of several"])
def test_unknown_dimension_name(engine, access):
    """Asking a mesh for a dimension that it lacks is refused, and the message names the dimension."""
    with engine.simulated_world(0, 4):
        mesh = engine.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        ask = {
            "slice": lambda: mesh["ep"],
            "group": lambda: mesh.get_group("ep"),
            "slice of several": lambda: mesh["dp", "ep"],
        }[access]
        with pytest.raises(REFUSAL, match="'ep'"):
            ask()


@contract("COL-0-04")
def test_mesh_larger_than_the_world(engine):
    """A mesh with more places than the world has ranks is refused, and the message names both numbers."""
    with engine.simulated_world(0, 4), pytest.raises(REFUSAL, match=r"\b4\b.*\b8\b|\b8\b.*\b4\b"):
        engine.init_device_mesh("cpu", (2, 4))


@contract("COL-0-04")
@pytest.mark.parametrize("rank", range(4))
def test_repeated_rank_in_a_rank_list(engine, rank):
    """A rank that is listed twice is refused on every rank, and the message names it."""
    with engine.simulated_world(rank, 4), pytest.raises(REFUSAL, match=r"\b2\b"):
        engine.init_device_mesh("cpu", (2, 2), rank_list=[0, 2, 2, 3])


@contract("COL-0-04")
def test_rank_outside_the_world_in_a_rank_list(engine):
    """A rank that the world lacks is refused, and the message names it."""
    with engine.simulated_world(0, 4), pytest.raises(REFUSAL, match=r"\b9\b"):
        engine.init_device_mesh("cpu", (2, 2), rank_list=[0, 1, 2, 9])


@contract("COL-0-04")
def test_repeated_rank_in_a_mesh_array(engine):
    """The mesh class refuses an array with one rank in two rows, on every rank, and the message names it."""
    for rank in range(4):
        with engine.simulated_world(rank, 4), pytest.raises(REFUSAL, match=r"\b2\b"):
            engine.DeviceMesh("cpu", [[0, 2], [2, 3]])
