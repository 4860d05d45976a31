"""Redistribution from one mesh to another: values and gradients are those of the full tensor."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.dtensor.pairs import EVEN
from hyper_parallel_tests.domains.dtensor.reference import part
from hyper_parallel_tests.domains.dtensor.setting import numbers, on, placed
from hyper_parallel_tests.harness import assert_equal, contract

# Source and target as shapes and ranks, for a world of so many ranks.
MESHES = {
    "another_shape": lambda size: (((size,), range(size)), ((2, size // 2), range(size))),
    "another_order": lambda size: (((size,), range(size)), ((size,), reversed(range(size)))),
    "submesh": lambda size: (((size,), range(size)), ((size // 2,), range(size // 2))),
    "wider_mesh": lambda size: (((size // 2,), range(size // 2, size)), ((size,), range(size))),
    "disjoint": lambda size: (((size // 2,), range(size // 2)), ((size // 2,), range(size // 2, size))),
}


def meshes(engine, world, name: str) -> list:
    """Both meshes of that name, made by all ranks."""
    return [
        engine.init_device_mesh(
            world.device.type, shape, mesh_dim_names=("a", "b")[: len(shape)], rank_list=list(ranks)
        )
        for shape, ranks in MESHES[name](world.size)
    ]


def check(engine, world, name: str, size: tuple[int, int], source: str, target: str) -> None:
    """Holds parts and gradient of one way from mesh to mesh to the full tensor's."""
    what = f"{name}, {source} to {target} of {size}"
    before, after = meshes(engine, world, name)
    kinds = "-".join([target] * after.ndim) if target == "R" else "-".join([target, "R"][: after.ndim])
    full, gradient = numbers(*size), numbers(*size, seed=1)
    tensor = on(engine, before, full, source).requires_grad_()
    found = engine.redistribute(tensor, after, placed(engine, kinds))
    assert found.device_mesh == after, what
    assert tuple(found.shape) == size, what
    place = after.get_coordinate()
    if place is None:
        assert found.to_local().numel() == 0, what
    else:
        wanted = part(full, tuple(after.mesh.shape), place, placed(engine, kinds))
        assert_equal(found.to_local().detach(), wanted, what=f"part, {what}")
    engine.backward(found, gradient)
    if before.get_coordinate() is not None:
        assert_equal(engine.full_gradient(tensor), gradient, what=f"gradient, {what}")


@contract("DT-2-06")
@pytest.mark.parametrize("name", MESHES)
def test_to_another_mesh(engine, world, name):
    """From each placement to each other, every rank of the target gets its part, the others nothing."""
    for source in ("S0", "R", "P"):
        for target in ("S1", "S0", "R"):
            check(engine, world, name, EVEN, source, target)


@contract("DT-2-06")
def test_parts_of_different_sizes(engine, world):
    """The same where the parts differ in size on either mesh."""
    for name in ("another_shape", "submesh", "wider_mesh", "disjoint"):
        check(engine, world, name, (7, 5), "S0", "S1")
        check(engine, world, name, (1, 3), "S1", "S0")


@contract("DT-2-06")
def test_there_and_back(engine, world):
    """A tensor that goes to another mesh and comes back is what it was, and so is its gradient."""
    before, after = meshes(engine, world, "another_shape")
    tensor = on(engine, before, numbers(8, 4), "S0").requires_grad_()
    there = engine.redistribute(tensor, after, placed(engine, "R-S1"))
    back = engine.redistribute(there, before, placed(engine, "S0"))
    assert_equal(back.to_local().detach(), tensor.to_local().detach(), what="part")
    engine.backward(back, numbers(8, 4, seed=1))
    assert_equal(engine.full_gradient(tensor), numbers(8, 4, seed=1), what="gradient")


@contract("DT-2-06")
def test_to_terms_on_another_mesh(engine, world):
    """Terms cannot be made on another mesh: the error says Partial and comes before anything is sent."""
    before, after = meshes(engine, world, "another_order")
    tensor = on(engine, before, torch.ones(8, 4), "S0")
    with pytest.raises((RuntimeError, ValueError, NotImplementedError), match=r"(?i)partial"):
        engine.redistribute(tensor, after, placed(engine, "P"))
