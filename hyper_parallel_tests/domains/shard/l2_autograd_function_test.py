"""Distributed autograd functions against autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.domains.shard.derivatives import assert_as_whole, on_whole_tensors, operand, operands
from hyper_parallel_tests.domains.shard.setting import kind_of, layout
from hyper_parallel_tests.harness import assert_equal, contract

SCALE = 2.0
# What is possible along one mesh dimension: the result's kind, and those of both matrices.
ROWS = [("S0", "S0", "R"), ("S1", "R", "S1"), ("P", "S1", "S0"), ("R", "R", "R")]


def doubled_product(left: Any, right: Any) -> Any:
    return SCALE * torch.matmul(left, right)


def sum_and_difference(left: Any, right: Any) -> tuple[Any, Any]:
    return left + right, left - right


def scaled_product(engine: Any, rows: list[tuple[str, str, str]] = ROWS) -> Any:
    """`scale * left @ right` with a backward of its own."""

    class ScaledProduct(engine.DFunction):
        op_name = "scaled_product"

        @staticmethod
        def forward(ctx: Any, left: Tensor, right: Tensor, scale: float) -> Tensor:
            ctx.save_for_backward(left, right)
            ctx.scale = scale
            return scale * torch.matmul(left, right)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
            left, right = ctx.saved_tensors
            return ctx.scale * gradient @ right.T, ctx.scale * left.T @ gradient, None

        @staticmethod
        def rule(left: Any, right: Any, scale: float) -> list[tuple[list[Any], list[Any]]]:
            placed = [[layout(engine, kind)[0] for kind in row] for row in rows]
            return [([output], [one, other, None]) for output, one, other in placed]

    return ScaledProduct


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
