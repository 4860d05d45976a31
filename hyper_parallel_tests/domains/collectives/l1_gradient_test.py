"""Gradients through collectives, against the same computation of all ranks in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.harness import assert_equal, contract

ROWS_SENT = [[1, 3, 0, 2], [2, 0, 1, 1], [4, 1, 1, 0], [0, 2, 3, 1]]
"""ROWS_SENT[i][j]: rows from rank i to rank j in the uneven all-to-all. A smaller world takes the corner."""


@dataclass(frozen=True)
class Computation:
    """A collective of the engine, and what it means.

    Attributes:
        shape: rank -> shape of that rank's input.
        distributed: this rank's input -> this rank's output.
        in_one_place: all ranks' inputs -> all ranks' outputs.
    """

    shape: Callable[[int], tuple[int, int]]
    distributed: Callable[[Tensor], Tensor]
    in_one_place: Callable[[list[Tensor]], list[Tensor]]


def all_reduce(engine, rank: int, n: int) -> Computation:
    return Computation(lambda _: (3, 4), engine.differentiable_all_reduce, lambda inputs: [sum(inputs)] * n)


def all_gather(engine, rank: int, n: int, dim: int) -> Computation:
    return Computation(
        lambda _: (3, 4),
        lambda tensor: engine.differentiable_all_gather(tensor, dim),
        lambda inputs: [torch.cat(inputs, dim)] * n,
    )


def reduce_scatter(engine, rank: int, n: int, dim: int) -> Computation:
    return Computation(
        lambda _: (2 * n, 3) if dim == 0 else (3, 2 * n),
        lambda tensor: engine.differentiable_reduce_scatter(tensor, dim),
        lambda inputs: list(sum(inputs).chunk(n, dim)),
    )


def all_to_all(engine, rank: int, n: int, even: bool) -> Computation:
    sent = [[2] * n] * n if even else [row[:n] for row in ROWS_SENT[:n]]
    received = [[row[peer] for row in sent] for peer in range(n)]

    def exchange(inputs: list[Tensor]) -> list[Tensor]:
        parts = [tensor.split(sizes) for tensor, sizes in zip(inputs, sent, strict=True)]
        return [torch.cat([of_peer[receiver] for of_peer in parts]) for receiver in range(n)]

    return Computation(
        lambda peer: (sum(sent[peer]), 3),
        lambda tensor: engine.differentiable_all_to_all(
            tensor, None if even else received[rank], None if even else sent[rank]
        ),
        exchange,
    )


COMPUTATIONS = {
    "all_reduce": all_reduce,
    "all_gather-rows": lambda *where: all_gather(*where, dim=0),
    "all_gather-columns": lambda *where: all_gather(*where, dim=1),
    "reduce_scatter-rows": lambda *where: reduce_scatter(*where, dim=0),
    "reduce_scatter-columns": lambda *where: reduce_scatter(*where, dim=1),
    "all_to_all-even": lambda *where: all_to_all(*where, even=True),
    "all_to_all-uneven": lambda *where: all_to_all(*where, even=False),
}


def whole_numbers(world, seed: int, shape: tuple[int, ...]) -> Tensor:
    """Small whole numbers, the same on every rank: sums and products are exact, so equality is."""
    return torch.randint(-5, 6, shape, generator=world.generator(seed)).float().to(world.device)


@contract("COL-1-06")
@pytest.mark.parametrize("name", COMPUTATIONS)
def test_output_and_gradient(engine, world, name):
    """Output and gradient of the sum of all ranks' losses equal those of the computation in one place."""
    computation = COMPUTATIONS[name](engine, world.rank, world.size)
    inputs = [whole_numbers(world, rank, computation.shape(rank)) for rank in range(world.size)]
    everywhere = [tensor.clone().requires_grad_() for tensor in inputs]
    expected = computation.in_one_place(everywhere)
    weights = [whole_numbers(world, 100 + rank, output.shape) for rank, output in enumerate(expected)]
    sum((output * weight).sum() for output, weight in zip(expected, weights, strict=True)).backward()

    mine = inputs[world.rank].clone().requires_grad_()
    output = computation.distributed(mine)
    (output * weights[world.rank]).sum().backward()
    assert_equal(output, expected[world.rank], what="output")
    assert_equal(mine.grad, everywhere[world.rank].grad, what="gradient")


@contract("COL-1-06")
@pytest.mark.parametrize("name", ["all_gather-rows", "reduce_scatter-rows", "all_to_all-uneven"])
def test_gradients_accumulate(engine, world, name):
    """A second forward and backward adds the same gradient again, and the input itself stays as it was."""
    computation = COMPUTATIONS[name](engine, world.rank, world.size)
    mine = whole_numbers(world, world.rank, computation.shape(world.rank)).requires_grad_()
    before = mine.detach().clone()
    gradients = []
    for _ in range(2):
        output = computation.distributed(mine)
        (output * whole_numbers(world, 7, output.shape)).sum().backward()
        gradients.append(mine.grad.clone())
    assert_equal(gradients[1], 2 * gradients[0], what="gradient of two backwards")
    assert_equal(mine, before, what="input")


@contract("COL-1-06")
def test_there_and_back_is_the_identity(engine, world):
    """An all-to-all followed by its inverse gives output and gradient of the identity."""
    computation = COMPUTATIONS["all_to_all-uneven"](engine, world.rank, world.size)
    sent = ROWS_SENT[world.rank][: world.size]
    received = [row[world.rank] for row in ROWS_SENT[: world.size]]
    mine = whole_numbers(world, world.rank, computation.shape(world.rank)).requires_grad_()
    weight = whole_numbers(world, 50 + world.rank, mine.shape)
    back = engine.differentiable_all_to_all(computation.distributed(mine), sent, received)
    (back * weight).sum().backward()
    assert_equal(back, mine, what="what came back")
    assert_equal(mine.grad, weight, what="gradient")
