"""What the cases expect, computed without any engine."""

from __future__ import annotations

import torch


def part(full: torch.Tensor, *, dim: int | None, index: int, count: int) -> torch.Tensor:
    """The part of ``full`` that rank ``index`` of ``count`` holds when ``dim`` is divided (None: all of it).

    Parts have ceil(size / count) rows each, the last ones fewer or none: torch.chunk's rule, spelled out.
    """
    if dim is None:
        return full.detach()
    size = full.shape[dim]
    longest = -(-size // count)
    start = min(index * longest, size)
    return full.detach().narrow(dim, start, min(longest, size - start))
