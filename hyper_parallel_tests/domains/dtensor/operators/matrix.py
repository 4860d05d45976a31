"""The operator matrix as a whole: every row, and those that stand for their kind on more ranks."""

from __future__ import annotations

from hyper_parallel_tests.domains.dtensor.operators import (
    elementwise,
    indexing,
    inplace,
    losses,
    normalization,
    partials,
    products,
    reductions,
    shaping,
)

__all__ = ["MATRIX", "ON_FOUR"]

MATRIX = (
    *elementwise.UNARY,
    *elementwise.BINARY,
    *elementwise.BROADCAST,
    *products.PRODUCTS,
    *products.ATTENTION,
    *reductions.LINEAR,
    *reductions.EXTREMES,
    *reductions.MOMENTS,
    *reductions.SCANS,
    *normalization.NORMALIZATION,
    *losses.CLASSES,
    *losses.DISTANCES,
    *shaping.VIEWS,
    *shaping.JOINS,
    *shaping.PARTS,
    *shaping.MOVES,
    *indexing.LOOKUPS,
    *indexing.WRITES,
    *inplace.IN_PLACE,
    *partials.CARRIED,
    *partials.COMBINED,
)

ON_FOUR = tuple(row for row in MATRIX if row.on_four)
