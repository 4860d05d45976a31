"""When transfers of rows start and are waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch.distributed as dist

from hyper_parallel_tests.harness import trace


class Moments(list[str]):
    """The recording: `start int64` or `start float32` for a collective, `wait` for the end of a wait, in order."""

    def of_rows(self) -> list[str]:
        """`start` and `wait` of what has rows, in order, after the exchange of counts."""
        first = next((place for place, one in enumerate(self) if one == "start float32"), len(self))
        return ["wait" if one == "wait" else "start" for one in self[first:]]


@contextmanager
def moments() -> Iterator[Moments]:
    """Records the collectives that this thread and its backward passes start, and their `Work.wait`."""
    recorded = Moments()
    original = dist.Work.wait
    seen = 0

    def catch_up() -> None:
        nonlocal seen
        recorded.extend(f"start {one.dtype}" for one in list(sent)[seen:])
        seen = len(sent)

    def wait(work: Any, *args: Any) -> Any:
        catch_up()
        recorded.append("wait")
        return original(work, *args)

    with trace.collectives() as sent, mock.patch.object(dist.Work, "wait", wait):
        yield recorded
        catch_up()
