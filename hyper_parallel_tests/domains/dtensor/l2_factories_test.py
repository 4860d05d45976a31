"""Distributed tensors made from nothing."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.dtensor.setting import on, placed
from hyper_parallel_tests.harness import assert_equal, contract

KINDS = ["R", "S0", "S1"]


def emptied(engine, size: tuple[int, ...], **where):
    """An empty tensor, whose values are whatever they are, with zeros written into each part."""
    found = engine.empty(size, **where)
    found.to_local().zero_()
    return found


FILLED = {
    "ones": lambda engine, size, **where: engine.ones(size, **where),
    "zeros": lambda engine, size, **where: engine.zeros(size, **where),
    "full": lambda engine, size, **where: engine.full(size, 2.5, **where),
    "empty": emptied,
}
VALUES = {"ones": 1.0, "zeros": 0.0, "full": 2.5, "empty": 0.0}
SIZES = {"even": [(8, 4)], "uneven": [(7, 5), (1, 3), (0, 4)]}


@contract("DT-2-04")
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", FILLED)
def test_filled(engine, world, name, sizes):
    """A filled tensor has its full shape and value, each rank its part, and the default dtype."""
    mesh = world.mesh(tp=world.size)
    for size in SIZES[sizes]:
        for kind in KINDS:
            found = FILLED[name](engine, size, device_mesh=mesh, placements=placed(engine, kind))
            wanted = torch.full(size, VALUES[name])
            assert isinstance(found, engine.DTensor)
            assert tuple(found.shape) == size
            assert list(found.placements) == placed(engine, kind)
            assert not found.requires_grad
            assert_equal(found.to_local(), on(engine, mesh, wanted, kind).to_local(), what=f"{kind} part of {size}")
            assert_equal(found.full_tensor(), wanted, what=f"{kind} of {size}")


@contract("DT-2-04")
def test_terms_of_nothing(engine, world):
    """A tensor of terms is made of terms: ones along a dimension to be summed are as many as its ranks."""
    found = engine.ones((4, 2), device_mesh=world.mesh(tp=world.size), placements=placed(engine, "P"))
    assert_equal(found.full_tensor(), torch.full((4, 2), float(world.size)), what="sum of ones")


@contract("DT-2-04")
@pytest.mark.parametrize("name", ["ones", "zeros", "full", "empty", "rand", "randn"])
def test_dtype_and_gradient(engine, world, name):
    """The dtype is the one asked for, and the tensor is a leaf that needs a gradient if asked for."""
    where = {"device_mesh": world.mesh(tp=world.size), "placements": placed(engine, "S0")}
    args = ((8, 4), 1) if name == "full" else ((8, 4),)
    found = getattr(engine, name)(*args, **where, dtype=torch.float64, requires_grad=True)
    assert found.dtype == found.to_local().dtype == torch.float64
    assert found.requires_grad
    assert found.is_leaf
    engine.backward(found * 2, torch.ones(8, 4, dtype=torch.float64))
    assert_equal(engine.full_gradient(found), torch.full((8, 4), 2.0, dtype=torch.float64), what="gradient")


@contract("DT-2-04")
def test_dtype_follows_the_fill_value(engine, world):
    """As with a plain tensor, an integer fills with integers and a truth value with truth values."""
    where = {"device_mesh": world.mesh(tp=world.size), "placements": placed(engine, "S0")}
    for value in (3, 2.5, True):
        assert engine.full((8, 4), value, **where).dtype == torch.full((8, 4), value).dtype


@contract("DT-2-04")
@pytest.mark.parametrize("name", ["rand", "randn"])
@pytest.mark.parametrize("kind", KINDS)
def test_random(engine, world, name, kind):
    """Parts of one random tensor: replicas agree, shards differ, draws differ, and the generators stay in step."""
    mesh = world.mesh(tp=world.size)
    torch.manual_seed(7)
    where = {"device_mesh": mesh, "placements": placed(engine, kind)}
    first, second = (getattr(engine, name)((8, 64), **where) for _ in range(2))
    assert tuple(first.shape) == (8, 64)
    parts = first.full_tensor().chunk(world.size, dim=1 if kind == "S1" else 0)
    assert len({tuple(one.flatten().tolist()) for one in parts}) == world.size, "shards repeat"
    assert not torch.equal(first.to_local(), second.to_local())
    assert first.to_local().std() > 0
    # Replicas and generators are compared with the first rank's, which sends its own.
    state = torch.get_rng_state()
    mine = (engine.from_local(first.full_tensor(), mesh, placed(engine, "R")).to_local(), state)
    theirs = tuple(engine.distribute_tensor(one, mesh, placed(engine, "R"), src_data_rank=0).to_local() for one in mine)
    assert_equal(mine, theirs, what="what the ranks drew, and their generators afterwards")


@contract("DT-2-04")
def test_random_numbers_are_those_of_the_distribution(engine, world):
    """`rand` lies in [0, 1) with mean near a half; `randn` has mean near zero and variance near one."""
    where = {"device_mesh": world.mesh(tp=world.size), "placements": placed(engine, "S0")}
    torch.manual_seed(7)
    uniform, normal = (make((64, 64), **where).full_tensor() for make in (engine.rand, engine.randn))
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert 0.45 < uniform.mean() < 0.55
    assert -0.1 < normal.mean() < 0.1
    assert 0.9 < normal.var() < 1.1
