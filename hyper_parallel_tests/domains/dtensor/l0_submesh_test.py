"""Submeshes: what a part of a mesh, a flattened one and one of existing groups have in common with the mesh."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from hyper_parallel_tests.domains.dtensor.reference import coordinates
from hyper_parallel_tests.harness import contract

SHAPE, NAMES = (2, 3, 2), ("pp", "dp", "tp")
WORLD = math.prod(SHAPE)


def ranks_along(rank: int, names: tuple[str, ...]) -> list[int]:
    """Ranks that differ from this one along these dimensions only, in row-major order."""
    own = coordinates(SHAPE)[rank]
    fixed = [dim for dim, name in enumerate(NAMES) if name not in names]
    return [peer for peer, place in enumerate(coordinates(SHAPE)) if all(place[dim] == own[dim] for dim in fixed)]


@contract("DT-0-06")
@pytest.mark.parametrize("names", [("pp",), ("dp",), ("tp",), ("pp", "dp"), ("dp", "tp"), ("pp", "tp")], ids="-".join)
def test_slice_keeps_names_ranks_and_groups(engine, names):
    """A slice by name has these names, the ranks around the caller, and the very groups of the mesh."""
    for rank in range(WORLD):
        with engine.simulated_world(rank, WORLD):
            mesh = engine.init_device_mesh("cpu", SHAPE, mesh_dim_names=NAMES)
            part = mesh[names if len(names) > 1 else names[0]]
            assert tuple(part.mesh_dim_names) == names
            assert part.mesh.flatten().tolist() == ranks_along(rank, names)
            assert tuple(part.mesh.shape) == tuple(SHAPE[NAMES.index(name)] for name in names)
            for name in names:
                group = engine.get_process_group_ranks(part.get_group(name))
                assert group == engine.get_process_group_ranks(mesh.get_group(name)) == ranks_along(rank, (name,))
                assert part.get_local_rank(name) == mesh.get_local_rank(name)


@contract("DT-0-06")
@pytest.mark.parametrize("names", [("pp", "dp"), ("dp", "tp"), NAMES], ids="-".join)
def test_flattening_joins_dimensions(engine, names):
    """Flattened dimensions are one, over the same ranks in row-major order, and the mesh knows it by its name."""
    for rank in range(WORLD):
        with engine.simulated_world(rank, WORLD):
            mesh = engine.init_device_mesh("cpu", SHAPE, mesh_dim_names=NAMES)
            flat = engine.flatten_mesh(mesh[names] if names != NAMES else mesh, "flat")
            expected = ranks_along(rank, names)
            assert (tuple(flat.mesh_dim_names), flat.ndim) == (("flat",), 1)
            assert flat.mesh.tolist() == engine.get_process_group_ranks(flat.get_group()) == expected
            assert flat.get_local_rank() == expected.index(rank)
            assert mesh["flat"] == flat


@contract("DT-0-06")
def test_slice_of_a_slice_and_its_root(engine):
    """Slicing twice is slicing once, and every part names the mesh that it comes from."""
    with engine.simulated_world(7, WORLD):
        mesh = engine.init_device_mesh("cpu", SHAPE, mesh_dim_names=NAMES)
        once, twice = mesh["tp"], mesh["dp", "tp"]["tp"]
        assert once == twice
        assert once.mesh.tolist() == twice.mesh.tolist() == [6, 7]
        assert engine.root_mesh(once) == engine.root_mesh(twice) == engine.root_mesh(mesh) == mesh


@contract("DT-0-06")
def test_meshes_are_values(engine):
    """Meshes made alike are equal and hash alike; other ranks, another shape or other names make another mesh."""
    with engine.simulated_world(0, 8):

        def make(shape=(2, 2), names=("dp", "tp"), ranks=(0, 1, 2, 3)):
            return engine.init_device_mesh("cpu", shape, mesh_dim_names=names, rank_list=list(ranks))

        others = [make(shape=(4, 1)), make(names=("dp", "cp")), make(ranks=(0, 2, 1, 3)), make(ranks=(0, 1, 4, 5))]
        assert make() == make()
        assert hash(make()) == hash(make())
        assert all(one != other for one, other in itertools.combinations([make(), *others], 2))


@contract("DT-0-06")
def test_mesh_of_one_group_equals_mesh_of_its_ranks(engine):
    """A mesh around an existing group is the mesh of the group's ranks, and works with that group."""
    for rank in range(4):
        with engine.simulated_world(rank, 4):
            group = engine.new_group([0, 1, 2, 3])
            mesh = engine.mesh_from_group(group, "cpu", mesh_dim_names=("tp",))
            assert tuple(mesh.mesh_dim_names) == ("tp",)
            tensor = engine.distribute_tensor(torch.arange(8), mesh, [engine.Shard(0)])
            assert tensor.to_local().tolist() == [2 * rank, 2 * rank + 1]
            assert mesh.get_group("tp") == group
            assert mesh == engine.init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


@contract("DT-0-06")
def test_mesh_of_two_groups_equals_mesh_of_its_ranks(engine):
    """A mesh around a row's and a column's group is the mesh of the ranks, with these groups."""
    for rank in range(4):
        with engine.simulated_world(rank, 4):
            made = engine.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            groups = [made.get_group("dp"), made.get_group("tp")]
            mesh = engine.mesh_from_group(groups, "cpu", torch.arange(4).reshape(2, 2), mesh_dim_names=("dp", "tp"))
            assert tuple(mesh.mesh_dim_names) == ("dp", "tp")
            tensor = engine.distribute_tensor(torch.arange(8), mesh, [engine.Shard(0), engine.Replicate()])
            assert tensor.to_local().tolist() == list(range(4 * (rank // 2), 4 * (rank // 2) + 4))
            assert [mesh.get_group("dp"), mesh.get_group("tp")] == groups
            assert mesh == made


@contract("DT-0-06")
def test_tensor_on_a_slice(engine):
    """A tensor on a slice is divided by the caller's coordinate along it, whatever its other coordinates are."""
    for rank, (_, _, tp) in enumerate(coordinates(SHAPE)):
        with engine.simulated_world(rank, WORLD):
            mesh = engine.init_device_mesh("cpu", SHAPE, mesh_dim_names=NAMES)
            tensor = engine.distribute_tensor(torch.arange(6), mesh["tp"], [engine.Shard(0)])
            assert tensor.to_local().tolist() == list(range(3 * tp, 3 * tp + 3))
