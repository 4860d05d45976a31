"""A healthy case to stand between broken ones: it passes only on ranks that nothing has poisoned."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def neighbour(world: Any) -> None:
    """All ranks sum their numbers."""
    total = torch.tensor(float(world.rank))
    dist.all_reduce(total)
    assert total.item() == sum(range(world.size))
