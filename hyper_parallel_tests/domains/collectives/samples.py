"""Inputs that every rank can build for every rank, and what a reduction of them gives.

All values are whole numbers small enough for sums and products of a few ranks to be exact in every dtype, so
results are compared for equality.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DTYPES = {**FLOATS, "int64": torch.int64, "bool": torch.bool}
OPS = ("sum", "avg", "max", "min", "prod")
REDUCTIONS = [(dtype, op) for dtype in DTYPES for op in OPS if op != "avg" or dtype in FLOATS]
"""Every (dtype, op) that has a meaning."""

_FACTORS = torch.tensor([-3, -2, -1, 1, 2, 3])


def factors(world, rank: int, shape: tuple[int, ...], dtype: str) -> Tensor:
    """What ``rank`` contributes to a reduction: no zeros, so that a product keeps every factor."""
    drawn = torch.randint(0, len(_FACTORS), shape, generator=world.generator(1000 + rank))
    values = drawn > 2 if dtype == "bool" else _FACTORS[drawn]
    return values.to(world.device, DTYPES[dtype])


def payload(world, rank: int, shape: tuple[int, ...], dtype: str, seed: int = 0) -> Tensor:
    """What ``rank`` sends, with a wide range of values. Another ``seed`` gives another message."""
    drawn = torch.randint(-100, 101, shape, generator=world.generator(2000 + 100 * seed + rank))
    values = drawn > 0 if dtype == "bool" else drawn
    return values.to(world.device, DTYPES[dtype])


def empty_like_payload(world, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Room for a result, filled with what no result contains."""
    filling = torch.full(shape, 77, dtype=torch.int64)
    return filling.to(world.device, DTYPES[dtype])


def reduced(op: str, contributions: list[Tensor]) -> Tensor:
    """The elementwise reduction, in their dtype. For bool, sum and max mean any, prod and min mean all."""
    stacked = torch.stack(contributions)
    if stacked.dtype == torch.bool:
        return stacked.any(0) if op in ("sum", "max") else stacked.all(0)
    wide = stacked.double()
    result = {
        "sum": wide.sum(0),
        "avg": wide.mean(0),
        "max": wide.amax(0),
        "min": wide.amin(0),
        "prod": wide.prod(0),
    }[op]
    return result.to(stacked.dtype)
