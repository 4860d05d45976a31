"""What an operation on distributed tensors gives, and that a plain tensor among them is noticed."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from hyper_parallel_tests.domains.dtensor.setting import numbers, on, placed
from hyper_parallel_tests.harness import assert_equal, contract

# Operation on distributed tensors of 8 x 4 numbers, their placements, and that of the result.
OPERATIONS = {
    "relu": (torch.relu, ["S0"], "S0"),
    "relu_replicated": (torch.relu, ["R"], "R"),
    "add": (torch.add, ["S1", "S1"], "S1"),
    "add_terms": (torch.add, ["P", "P"], "P"),
    "scale_terms": (lambda x: x * 2, ["P"], "P"),
    "transpose": (lambda x: x.transpose(0, 1), ["S0"], "S1"),
    "sum": (lambda x: x.sum(), ["S0"], "P"),
    "sum_over_the_divided": (lambda x: x.sum(0), ["S0"], "P"),
    "sum_over_the_other": (lambda x: x.sum(1), ["S0"], "S0"),
    "sum_replicated": (lambda x: x.sum(0), ["R"], "R"),
    "mean": (lambda x: x.mean(), ["S0"], "Pavg"),
    "softmax": (lambda x: torch.softmax(x, 1), ["S0"], "S0"),
    "matmul_by_columns": (lambda x, y: torch.matmul(x, y.transpose(0, 1)), ["R", "S0"], "S1"),
    "matmul_by_rows": (lambda x, y: torch.matmul(x, y.transpose(0, 1)), ["S0", "R"], "S0"),
    "matmul_by_terms": (lambda x, y: torch.matmul(x, y.transpose(0, 1)), ["S1", "S1"], "P"),
    "layer_norm": (lambda x: functional.layer_norm(x, (4,)), ["S0"], "S0"),
    "cast": (lambda x: x.to(torch.float64), ["S1"], "S1"),
}

# Each with its name as the error may have it. What takes one tensor cannot mix.
MIXTURES = {
    "add": (lambda sharded, plain: sharded + plain, "add"),
    "plain_first": (lambda sharded, plain: plain * sharded, "mul"),
    "matmul": (lambda sharded, plain: torch.matmul(sharded, plain.transpose(0, 1)), "mm"),
    "cat": (lambda sharded, plain: torch.cat([sharded, plain]), "cat"),
    "where": (lambda sharded, plain: torch.where(sharded > 0, sharded, plain), "where"),
    "in_place": (lambda sharded, plain: sharded.add_(plain), "add_"),
}


@contract("DT-1-01")
@pytest.mark.parametrize("name", OPERATIONS)
def test_result_has_the_inferred_placement(engine, world, name):
    """An operation gives a distributed tensor of the placement that follows, with the full result's shape."""
    operation, kinds, expected = OPERATIONS[name]
    mesh, full = world.mesh(tp=world.size), [numbers(8, 4, seed=seed) for seed in range(len(kinds))]
    found = operation(*(on(engine, mesh, one, kind) for one, kind in zip(full, kinds, strict=True)))
    assert isinstance(found, engine.DTensor)
    assert list(found.placements) == placed(engine, expected)
    assert found.device_mesh == mesh
    wanted = operation(*full)
    assert tuple(found.shape) == tuple(wanted.shape)
    assert found.dtype == wanted.dtype


@contract("DT-1-01")
@pytest.mark.parametrize("name", MIXTURES)
def test_plain_tensor_among_distributed_ones(engine, world, name):
    """A plain tensor among distributed ones is refused, and the message names the operation."""
    operation, word = MIXTURES[name]
    sharded = on(engine, world.mesh(tp=world.size), numbers(8, 4), "S0")
    with pytest.raises((RuntimeError, ValueError, TypeError), match=word):
        operation(sharded, numbers(8, 4))


@contract("DT-1-01")
def test_numbers_mix(engine, world):
    """A number is no tensor: it acts on every element, whatever the placement."""
    mesh, full = world.mesh(tp=world.size), numbers(8, 4)
    for kind in ("R", "S0", "S1"):
        found = on(engine, mesh, full, kind) * 3 - 1
        assert list(found.placements) == placed(engine, kind)
        assert_equal(found.full_tensor(), full * 3 - 1, what=f"numbers with {kind}")


@contract("DT-1-01")
def test_meshes_do_not_mix(engine, world):
    """Tensors of two meshes do not meet in an operation: an error, at once."""
    one = on(engine, world.mesh(tp=world.size), numbers(8, 4), "S0")
    other = on(engine, world.mesh(dp=world.size, tp=1), numbers(8, 4), "S0-R")
    with pytest.raises((RuntimeError, ValueError), match=r"(?i)mesh"):
        one + other  # noqa: B018
