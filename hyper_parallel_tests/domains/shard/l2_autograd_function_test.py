"""Distributed autograd functions against autograd."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from hyper_parallel_tests.domains.shard.derivatives import (
    ROWS,
    SCALE,
    assert_as_whole,
    doubled_product,
    grid_of,
    on_whole_tensors,
    operand,
    operands,
    operands_on,
    scaled_product,
)
from hyper_parallel_tests.domains.shard.setting import kind_of, layout
from hyper_parallel_tests.harness import assert_equal, contract


def sum_and_difference(left: Any, right: Any) -> tuple[Any, Any]:
    return left + right, left - right


def two_results(engine: Any) -> Any:
    """`sum_and_difference` with a backward of its own, by rows."""

    class SumAndDifference(engine.DFunction):
        op_name = "sum_and_difference"

        @staticmethod
        def forward(ctx: Any, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
            return sum_and_difference(left, right)

        @staticmethod
        def backward(ctx: Any, of_sum: Tensor, of_difference: Tensor) -> tuple[Tensor, Tensor]:
            return sum_and_difference(of_sum, of_difference)

        @staticmethod
        def rule(left: Any, right: Any) -> list[tuple[list[Any], list[Any]]]:
            rows = [engine.Shard(0), engine.Shard(0)]
            return [(rows, rows)]

    return SumAndDifference


@contract("SH-2-02")
@pytest.mark.parametrize(("output", "left", "right"), ROWS, ids=map("-".join, ROWS))
def test_result_and_gradients(engine, world, output, left, right):
    """In each row of its rule the function gives what autograd gives on whole tensors."""
    given = operands(engine, world, (left, right))
    found = scaled_product(engine).apply(*given, SCALE)
    assert kind_of(engine, found) == output
    assert_as_whole(engine, given, found, doubled_product)


@contract("SH-2-02")
@pytest.mark.parametrize("kinds", [("S0", "S0"), ("S1", "S1"), ("S1", "R")], ids="-".join)
def test_arguments_that_fit_no_row(engine, world, kinds):
    """They are laid out as the first row says, and gradients come back to where they lie."""
    given = operands(engine, world, kinds)
    found = scaled_product(engine).apply(*given, SCALE)
    assert kind_of(engine, found) == ROWS[0][0]
    assert_as_whole(engine, given, found, doubled_product)


@contract("SH-2-02")
@pytest.mark.parametrize("axes", [(ROWS[0], ROWS[1]), (ROWS[2], ROWS[0])], ids=["rows_columns", "terms_rows"])
def test_mesh_of_two_dimensions(engine, world, axes):
    """The rule is asked along each mesh dimension by itself."""
    output, *inputs = zip(*axes, strict=True)
    given = operands_on(engine, grid_of(world), inputs)
    found = scaled_product(engine).apply(*given, SCALE)
    assert tuple(found.placements) == layout(engine, *output)
    assert_as_whole(engine, given, found, doubled_product)


@contract("SH-2-02")
def test_two_results(engine, world):
    """Each lies as the rule says, and backward gets the gradients of both."""
    given = operands(engine, world, ("S0", "S1"))
    found = two_results(engine).apply(*given)
    assert [kind_of(engine, one) for one in found] == ["S0", "S0"]
    assert_as_whole(engine, given, found, sum_and_difference)


@contract("SH-2-02")
def test_plain_tensors(engine, world):
    """On plain tensors it is an autograd function, which the graph has by the operator's name."""
    left, right = (operand(seed).requires_grad_() for seed in range(2))
    found = scaled_product(engine).apply(left, right, SCALE)
    assert found.grad_fn.name() == "scaled_productBackward"
    (expected,), gradients = on_whole_tensors(doubled_product)
    assert_equal(found.detach(), expected, what="result")
    found.backward(operand(9))
    assert_equal([left.grad, right.grad], gradients, what="gradient")


@contract("SH-2-02")
def test_errors_name_the_operator(engine, world):
    """A rule without a row, and a plain tensor in the place of a distributed one."""
    given = operands(engine, world, ("S0", "R"))
    with pytest.raises(ValueError, match="scaled_product"):
        scaled_product(engine, rows=[]).apply(*given, SCALE)
    with pytest.raises((TypeError, ValueError), match="scaled_product"):
        scaled_product(engine).apply(given[0], operand(1), SCALE)


@contract("SH-2-02")
def test_unfinished_function(engine, world):
    """A subclass without an operator's name is refused where it is written."""
    with pytest.raises(TypeError, match="op_name"):
        type("Unfinished", (engine.DFunction,), {"forward": staticmethod(print), "backward": staticmethod(print)})
