"""Cutting a model's layers into stages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def split_into_stages(
    num_layers: int,
    num_stages: int,
    *,
    counts: Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
) -> list[range]:
    """See the port."""
    if not 1 <= num_stages <= num_layers:
        raise ValueError(f"{num_layers} layers make 1 to {num_layers} stages, not {num_stages}: each stage needs one")
    if counts is not None and weights is not None:
        raise ValueError("either the counts of layers are given or their weights, not both")
    if weights is not None:
        counts = _balanced(_checked_weights(weights, num_layers), num_stages)
    elif counts is None:
        least, more = divmod(num_layers, num_stages)
        counts = [least + (stage < more) for stage in range(num_stages)]
    elif len(counts) != num_stages or min(counts) < 1 or sum(counts) != num_layers:
        raise ValueError(f"{num_layers} layers in {num_stages} stages: expected as many positive counts, not {counts}")
    ends = list(itertools.accumulate(counts))
    return [range(end - count, end) for count, end in zip(counts, ends, strict=True)]


def _checked_weights(weights: Sequence[float], num_layers: int) -> Sequence[float]:
    if len(weights) != num_layers or min(weights) < 0:
        raise ValueError(f"expected {num_layers} weights of layers, none negative, not {weights}")
    return weights


def _balanced(weights: Sequence[float], num_stages: int) -> list[int]:
    """Counts of layers with the lightest heaviest stage, by dynamic programming over the layers' prefixes."""
    layers = len(weights)
    sums = [0, *itertools.accumulate(weights)]
    # By number of layers in the stages so far: the heaviest one's weight, and their counts.
    best = {end: (sums[end], [end]) for end in range(1, layers + 1)}
    for stage in range(2, num_stages + 1):
        best = {
            end: min(
                (max(best[begin][0], sums[end] - sums[begin]), [*best[begin][1], end - begin])
                for begin in range(stage - 1, end)
            )
            for end in range(stage, layers + 1)
        }
    return best[layers][1]
