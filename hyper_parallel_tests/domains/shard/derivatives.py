"""Results and gradients of functions of two matrices: on whole tensors, and on distributed ones held to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.shard.setting import layout, mesh_of, numbers, on
from hyper_parallel_tests.harness import World, assert_equal, in_clean_process

SIZE = 8
SCALE = 2.0
# What is possible of a matrix product along one mesh dimension: the result's kind, and those of both matrices.
ROWS = [("S0", "S0", "R"), ("S1", "R", "S1"), ("P", "S1", "S0"), ("R", "R", "R")]


def operand(seed: int) -> Tensor:
    """A matrix of small integers; seeds 0 and 1 are the operands, 9 is the gradient of each result."""
    return numbers(SIZE, SIZE, seed=seed)


def operands(engine: Any, world: World, kinds: Sequence[str]) -> list[nn.Parameter]:
    """Both operands as distributed tensors that need gradients."""
    return operands_on(engine, mesh_of(world), [(kind,) for kind in kinds])


def operands_on(engine: Any, mesh: Any, kinds: Sequence[tuple[str, ...]]) -> list[nn.Parameter]:
    """The same over a mesh of any dimensions, by a short name for each of them."""
    return [nn.Parameter(on(engine, mesh, operand(seed), *each)) for seed, each in enumerate(kinds)]


def grid_of(world: World) -> Any:
    """A mesh of two dimensions; on two cards the first has one rank."""
    return world.mesh(dp=world.size // 2, tp=2)


def on_whole_tensors(function: Callable[[Any, Any], Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The baseline: results, and gradients of both operands by autograd, on one card."""
    return in_clean_process(_differentiate, function)


def _differentiate(function: Callable[[Any, Any], Any]) -> tuple[list[Tensor], list[Tensor]]:
    given = [operand(seed).requires_grad_() for seed in range(2)]
    results = in_tuple(function(*given))
    sum((one * operand(9)).sum() for one in results).backward()
    return [one.detach() for one in results], [one.grad for one in given]


def in_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def assert_as_whole(engine: Any, given: list[Any], results: Any, function: Callable[[Any, Any], Any]) -> None:
    """Holds distributed results, and gradients after backward from each, to those of a function on whole tensors."""
    results, (expected, gradients) = in_tuple(results), on_whole_tensors(function)
    assert_equal([one.full_tensor().detach() for one in results], expected, what="result")
    for one in results:
        engine.backward(one, operand(9))
    assert_equal([engine.full_gradient(one) for one in given], gradients, what="gradient")


def doubled_product(left: Any, right: Any) -> Any:
    return SCALE * torch.matmul(left, right)


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
