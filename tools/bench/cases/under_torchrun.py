"""The trivial case for `torchrun -m pytest`: each rank is a pytest that forms the group by itself."""

from __future__ import annotations

import torch.distributed as dist

from tools.bench.cases import trivial


def test_all_reduce() -> None:
    """All ranks add up one element."""
    dist.init_process_group("gloo")
    trivial.all_reduce(0)
    dist.destroy_process_group()
