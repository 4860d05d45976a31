"""Values of the collectives on part of the world: along each dimension of a mesh, and in the parts of a split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.domains.collectives.groups import NAMES, Part, part_of_the_world
from hyper_parallel_tests.domains.collectives.samples import (
    DTYPES,
    REDUCTIONS,
    empty_like_payload,
    factors,
    payload,
    reduced,
)
from hyper_parallel_tests.harness import World, assert_equal, contract

COLUMNS = 3


@pytest.fixture(params=NAMES)
def part(request: pytest.FixtureRequest, engine: Any, world: World) -> Part:
    """This rank's group. Groups of one name are of one size, and each has other values."""
    return part_of_the_world(engine, world, request.param)


def rows_between(sender: int, receiver: int) -> int:
    """Different ones, and none."""
    return (sender + 2 * receiver) % 4


every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_reduction = pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
from_each_end = pytest.mark.parametrize("root", ["first", "last"])


def root_of(part: Part, root: str) -> int:
    return part.ranks[0 if root == "first" else -1]


@contract("COL-2-02")
@every_reduction
def test_all_reduce(engine, world, part, dtype, op):
    """Each member ends with the reduction over the members, and over nobody else."""
    terms = [factors(world, rank, (5, COLUMNS), dtype) for rank in part.ranks]
    tensor = terms[part.place].clone()
    engine.all_reduce(tensor, op, group=part.group)
    assert_equal(tensor, reduced(op, terms), what="tensor")


@contract("COL-2-02")
@every_reduction
def test_reduce_scatter(engine, world, part, dtype, op):
    """Each member ends with its own part of the reduction, of a size of its own or of none."""
    rows = [rows_between(place, 1) for place in range(len(part.ranks))]
    terms = [[factors(world, rank, (count, COLUMNS), dtype) for count in rows] for rank in part.ranks]
    output = empty_like_payload(world, (rows[part.place], COLUMNS), dtype)
    engine.reduce_scatter(output, terms[part.place], op, group=part.group)
    assert_equal(output, reduced(op, [one[part.place] for one in terms]), what="output")


@contract("COL-2-02")
@every_reduction
def test_reduce_scatter_of_one_tensor(engine, world, part, dtype, op):
    """Each member ends with its equal part of the reduction along dimension 0."""
    terms = [factors(world, rank, (2 * len(part.ranks), COLUMNS), dtype) for rank in part.ranks]
    output = empty_like_payload(world, (2, COLUMNS), dtype)
    engine.reduce_scatter_tensor(output, terms[part.place], op, group=part.group)
    assert_equal(output, reduced(op, terms).chunk(len(part.ranks))[part.place], what="output")


@contract("COL-2-02")
@every_dtype
def test_all_gather(engine, world, part, dtype):
    """Each member ends with the members' tensors in the group's order, of different sizes too."""
    expected = [payload(world, rank, (rank, COLUMNS), dtype) for rank in part.ranks]
    parts = [empty_like_payload(world, one.shape, dtype) for one in expected]
    engine.all_gather(parts, expected[part.place], group=part.group)
    assert_equal(parts, expected, what="parts")


@contract("COL-2-02")
@every_dtype
def test_all_gather_into_one_tensor(engine, world, part, dtype):
    """Each member ends with the members' tensors in the group's order along dimension 0."""
    expected = [payload(world, rank, (2, COLUMNS), dtype) for rank in part.ranks]
    output = empty_like_payload(world, (2 * len(part.ranks), COLUMNS), dtype)
    engine.all_gather_into_tensor(output, expected[part.place], group=part.group)
    assert_equal(output, torch.cat(expected), what="output")


@contract("COL-2-02")
@every_dtype
def test_all_to_all(engine, world, part, dtype):
    """Each member ends with what every member had for it, of different sizes and of none."""

    def sent(sender: int, receiver: int) -> Tensor:
        return payload(world, sender, (rows_between(sender, receiver), COLUMNS), dtype, seed=receiver)

    expected = [sent(peer, world.rank) for peer in part.ranks]
    outputs = [empty_like_payload(world, one.shape, dtype) for one in expected]
    engine.all_to_all(outputs, [sent(world.rank, peer) for peer in part.ranks], group=part.group)
    assert_equal(outputs, expected, what="parts")


@contract("COL-2-02")
@every_dtype
@from_each_end
def test_broadcast(engine, world, part, dtype, root):
    """Each member ends with the tensor of the source, which is a rank of the world."""
    source = root_of(part, root)
    tensor = payload(world, world.rank, (5, COLUMNS), dtype)
    engine.broadcast(tensor, source, group=part.group)
    assert_equal(tensor, payload(world, source, (5, COLUMNS), dtype), what="tensor")


@contract("COL-2-02")
@every_dtype
@from_each_end
def test_gather(engine, world, part, dtype, root):
    """The destination ends with the members' tensors in the group's order."""
    expected = [payload(world, rank, (5, COLUMNS), dtype) for rank in part.ranks]
    here = world.rank == root_of(part, root)
    parts = [empty_like_payload(world, (5, COLUMNS), dtype) for _ in part.ranks] if here else None
    engine.gather(expected[part.place], parts, root_of(part, root), group=part.group)
    if here:
        assert_equal(parts, expected, what="parts")


@contract("COL-2-02")
@every_dtype
@from_each_end
def test_scatter(engine, world, part, dtype, root):
    """Each member ends with what the source had for it."""
    source = root_of(part, root)
    parts = [payload(world, source, (5, COLUMNS), dtype, seed=rank) for rank in part.ranks]
    tensor = empty_like_payload(world, (5, COLUMNS), dtype)
    engine.scatter(tensor, parts if world.rank == source else None, source, group=part.group)
    assert_equal(tensor, parts[part.place], what="tensor")
