"""Values of the reducing collectives: every dtype, op and shape."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.collectives.samples import (
    DTYPES,
    FLOATS,
    REDUCTIONS,
    empty_like_payload,
    factors,
    reduced,
)
from hyper_parallel_tests.harness import assert_equal, contract

SHAPES = {"matrix": (5, 7), "vector": (13,), "scalar": (), "empty": (0, 3)}
ROWS = {
    "even": lambda rank: 3,
    "uneven": lambda rank: 1 + (2 * rank) % 5,
    "empty-part": lambda rank: 2 * rank,
    "all-empty": lambda rank: 0,
}
"""Rows of the part that each rank gets from a reduce-scatter."""


def contributions(world, shape, dtype: str) -> list[torch.Tensor]:
    return [factors(world, rank, shape, dtype) for rank in range(world.size)]


@contract("COL-2-01")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
def test_all_reduce(engine, world, dtype, op, shape):
    """Every rank ends with the elementwise reduction of all ranks' tensors."""
    whole = contributions(world, SHAPES[shape], dtype)
    tensor = whole[world.rank].clone()
    engine.all_reduce(tensor, op)
    assert_equal(tensor, reduced(op, whole), what="tensor")


@contract("COL-2-01")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
def test_reduce_scatter(engine, world, dtype, op, rows):
    """Each rank ends with its own part of the reduction, whether the parts are of one size or not."""
    parts = [contributions(world, (ROWS[rows](rank), 3), dtype) for rank in range(world.size)]
    output = empty_like_payload(world, (ROWS[rows](world.rank), 3), dtype)
    engine.reduce_scatter(output, [of_receiver[world.rank] for of_receiver in parts], op)
    assert_equal(output, reduced(op, parts[world.rank]), what="output")


@contract("COL-2-01")
@pytest.mark.parametrize("rows", ["even", "all-empty"])
@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
def test_reduce_scatter_of_one_tensor(engine, world, dtype, op, rows):
    """Each rank ends with its equal part along dimension 0 of the reduction."""
    size = ROWS[rows](0)
    whole = contributions(world, (size * world.size, 3), dtype)
    output = empty_like_payload(world, (size, 3), dtype)
    engine.reduce_scatter_tensor(output, whole[world.rank], op)
    assert_equal(output, reduced(op, whole)[size * world.rank : size * (world.rank + 1)], what="output")


@contract("COL-2-01")
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype not in FLOATS])
def test_average_needs_a_floating_point_dtype(engine, world, dtype):
    """An average of whole numbers or truth values is refused, and the group works on."""
    tensor = factors(world, world.rank, (4,), dtype)
    with pytest.raises(RuntimeError):
        engine.all_reduce(tensor, "avg")
    whole = contributions(world, (4,), dtype)
    tensor = whole[world.rank].clone()
    engine.all_reduce(tensor, "max")
    assert_equal(tensor, reduced("max", whole), what="tensor")


@contract("COL-2-01")
def test_unknown_op(engine, world):
    """An unknown reduction is refused before any communication, and the message names it."""
    with pytest.raises(ValueError, match="'median'"):
        engine.all_reduce(factors(world, world.rank, (4,), "fp32"), "median")
