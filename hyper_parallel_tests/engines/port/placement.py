"""Port of placements: how a tensor lies along one dimension of a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Placement(Protocol):
    """Values that say how a tensor lies along one mesh dimension; a tensor has one per dimension of its mesh.

    Placements are compared and hashed by value. Each answers ``is_shard(dim=None)``, ``is_replicate()`` and
    ``is_partial()``.
    """

    Shard: Callable[[int], Any]
    """``Shard(dim)``: the ranks divide tensor dimension ``dim`` in rank order. Negative ones count from the end.

    A part has ceil(size / ranks) indices, the last parts fewer or none: the semantics of ``torch.chunk``. Of two mesh
    dimensions that divide one tensor dimension the left one divides first. Has the attribute ``dim``.
    """
    StridedShard: Callable[..., Any]
    """``StridedShard(dim, split_factor=n)``: a ``Shard`` that divides after mesh dimensions to its right, which make n
    parts.

    On a mesh (dp, tp) with tp = 2, ``[StridedShard(0, split_factor=2), Shard(0)]`` divides dimension 0 over tp first
    and each part over dp, whereas ``[Shard(0), Shard(0)]`` divides over dp first.
    """
    Replicate: Callable[[], Any]
    """``Replicate()``: each rank has the whole."""
    Partial: Callable[..., Any]
    """``Partial(reduce_op="sum")``: each rank has a term of the whole size, and the tensor is what they reduce to by
    sum, avg, max, min or product. Has the attribute ``reduce_op``.
    """
