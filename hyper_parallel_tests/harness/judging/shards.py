"""Which rank holds an element of a sharded tensor, from its mesh and placements, without communication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Shards"]


@dataclass(frozen=True)
class Shards:
    """How one tensor lies on the ranks.

    Attributes:
        ranks: the mesh as a tensor of global ranks, one axis a mesh dimension.
        cuts: (mesh dimension, tensor dimension) of each cut, in the order of cutting.
        placements: as the engine prints them.
    """

    ranks: torch.Tensor
    cuts: tuple[tuple[int, int], ...]
    placements: str

    @classmethod
    def of(cls, tensor: Any) -> Shards | None:
        """The layout of a tensor that has `placements` and a `device_mesh`; None for a plain one."""
        mesh = getattr(getattr(tensor, "device_mesh", None), "mesh", None)
        placements = getattr(tensor, "placements", None)
        if mesh is None or placements is None:
            return None
        # A strided shard is cut after the plain shards of its dimension, although it is listed first.
        order = sorted(range(len(placements)), key=lambda axis: hasattr(placements[axis], "split_factor"))
        cuts = tuple((axis, placements[axis].dim) for axis in order if hasattr(placements[axis], "dim"))
        return cls(torch.as_tensor(mesh), cuts, str(tuple(placements)))

    def holders(self, index: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        """Global ranks that hold element `index` of the full tensor of `shape`; several for replicas."""
        chosen: list[Any] = [slice(None)] * self.ranks.ndim
        offset, size = list(index), list(shape)
        for axis, dim in self.cuts:
            if not shape:
                break
            # As torch.chunk cuts: equal pieces of the rounded-up size, the last ones shorter or empty.
            piece = max(1, -(-size[dim] // self.ranks.shape[axis]))
            chosen[axis] = offset[dim] // piece
            size[dim] = min(piece, size[dim] - chosen[axis] * piece)
            offset[dim] %= piece
        return tuple(sorted(int(rank) for rank in self.ranks[tuple(chosen)].reshape(-1)))

    def describe(self, index: tuple[int, ...], shape: tuple[int, ...]) -> str:
        """`held by rank 1 of (Shard(dim=0),)`."""
        holders = self.holders(index, shape)
        noun = "rank" if len(holders) == 1 else "ranks"
        return f"held by {noun} {', '.join(map(str, holders))} as {self.placements}"
