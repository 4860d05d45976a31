"""The case that every contender runs, and the record of when it ran."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from tools.bench.cases import settings


def all_reduce(number: int) -> None:
    """Case `number`: one collective over one element, and a line `number rank begun ended` in the record.

    Times are nanoseconds of the monotonic clock, which the processes of one machine share.
    """
    begun = time.monotonic_ns()
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == settings.ranks()
    ended = time.monotonic_ns()
    # One small append is one write, so the ranks' lines do not mix.
    with open(settings.record(), "a") as record:
        record.write(f"{number} {dist.get_rank()} {begun} {ended}\n")
