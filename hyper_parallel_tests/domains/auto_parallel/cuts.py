"""All cuts of layers into stages, tried one by one: what a balance is judged by. It shares nothing with an engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hyper_parallel_tests.engines.port.pipeline_balancing import LayerCost

__all__ = ["Cut", "all_cuts", "best_cut", "least_limit"]


@dataclass(frozen=True)
class Cut:
    """One cut, with what each stage takes; times exactly."""

    sizes: tuple[int, ...]
    times: tuple[Fraction, ...]
    memory: tuple[int, ...]


def all_cuts(layers: Sequence[LayerCost], num_stages: int, micro_batches: int) -> Iterator[Cut]:
    """In the order of their sizes: the first stage's, then the second's, ..."""
    for boundaries in itertools.combinations(range(1, len(layers)), num_stages - 1):
        bounds = [0, *boundaries, len(layers)]
        stages = [layers[first:end] for first, end in itertools.pairwise(bounds)]
        # A stage starts as many micro-batches as there are stages from it to the end before it must wait for the first.
        waiting = [min(num_stages - place, micro_batches) for place in range(num_stages)]
        yield Cut(
            tuple(len(one) for one in stages),
            tuple(sum((Fraction(layer.time) for layer in one), Fraction()) for one in stages),
            tuple(
                sum(layer.parameter_memory + held * layer.activation_memory for layer in one)
                for one, held in zip(stages, waiting, strict=True)
            ),
        )


def best_cut(
    layers: Sequence[LayerCost], num_stages: int, micro_batches: int, limits: Sequence[int] | None
) -> Cut | None:
    """The fastest that fits, of equal ones the first; None if none fits."""
    fitting = [
        one
        for one in all_cuts(layers, num_stages, micro_batches)
        if limits is None or all(size <= limit for size, limit in zip(one.memory, limits, strict=True))
    ]
    return min(fitting, key=lambda one: max(one.times), default=None)


def least_limit(layers: Sequence[LayerCost], num_stages: int, micro_batches: int) -> int:
    """The least bytes a stage that some cut does with."""
    return min(max(one.memory) for one in all_cuts(layers, num_stages, micro_batches))
