"""Results and gradients of functions of two matrices: on whole tensors, and on distributed ones held to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from hyper_parallel_tests.domains.shard.setting import numbers, on
from hyper_parallel_tests.harness import World, assert_equal, in_clean_process

SIZE = 8


def operand(seed: int) -> Tensor:
    """A matrix of small integers; seeds 0 and 1 are the operands, 9 is the gradient of each result."""
    return numbers(SIZE, SIZE, seed=seed)


def operands(engine: Any, world: World, kinds: Sequence[str]) -> list[nn.Parameter]:
    """Both operands as distributed tensors that need gradients."""
    mesh = world.mesh(tp=world.size)
    return [nn.Parameter(on(engine, mesh, operand(seed), kind)) for seed, kind in enumerate(kinds)]


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
