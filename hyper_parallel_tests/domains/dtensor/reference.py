"""What a rank holds of a tensor, by hand: the mathematics that the cases hold engines to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


def coordinates(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Coordinate of each rank in a mesh of this shape: the last dimension runs fastest."""
    return list(itertools.product(*map(range, shape)))


def divide(tensor: Tensor, divisions: Iterable[tuple[int, int, int]]) -> Tensor:
    """What is left after cutting a tensor again and again.

    Args:
        divisions: (tensor dimension, number of parts, index of the part that is kept), in the order of cutting. Parts
            have ceil(size / number) indices, the last ones fewer or none.
    """
    for dim, number, index in divisions:
        size = tensor.shape[dim]
        step = -(-size // number)
        start = min(index * step, size)
        tensor = tensor.narrow(dim, start, min(step, size - start))
    return tensor


def part(tensor: Tensor, mesh_shape: Sequence[int], coordinate: Sequence[int], placements: Sequence[Any]) -> Tensor:
    """What the rank at `coordinate` holds under `Shard` and `Replicate`, mesh dimensions from left to right."""
    along = zip(placements, mesh_shape, coordinate, strict=True)
    return divide(tensor, [(one.dim, number, index) for one, number, index in along if one.is_shard()])


def held(size: Sequence[int], mesh_shape: Sequence[int], coordinate: Sequence[int], placements: Sequence[Any]) -> set:
    """Row-major numbers of the elements that the rank at `coordinate` holds of a tensor of this size."""
    numbers = torch.arange(torch.Size(size).numel()).reshape(*size)
    return set(part(numbers, mesh_shape, coordinate, placements).flatten().tolist())
