"""The case that every contender runs, the same in a bare loop, and the record of when they ran."""

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
    _body()
    _record(number, begun)


def bare_loop() -> None:
    """What the case itself takes: its body as often as the run has cases, with nothing between, as one case."""
    begun = time.monotonic_ns()
    for _ in range(settings.cases()):
        _body()
    _record(settings.LOOP, begun)


def _body() -> None:
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == settings.ranks()


def _record(number: int, begun: int) -> None:
    ended = time.monotonic_ns()
    # One small append is one write, so the ranks' lines do not mix.
    with open(settings.record(), "a") as record:
        record.write(f"{number} {dist.get_rank()} {begun} {ended}\n")
