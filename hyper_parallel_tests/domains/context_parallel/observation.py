"""When transfers start and are waited for, seen from the modules between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch.distributed as dist
from torch import nn

from hyper_parallel_tests.harness import trace


class Moment(NamedTuple):
    """What has happened by the time of an event.

    Attributes:
        event: e.g. `forward q`, when that module's forward is over, or `backward_pre q`.
        started: collectives begun so far.
        waited: waits for a piece of work that are over so far.
    """

    event: str
    started: int
    waited: int


class Moments(list[Moment]):
    """The recording, in order."""

    def at(self, event: str) -> Moment:
        """The only moment of this event."""
        (found,) = [one for one in self if one.event == event]
        return found

    def since(self, first: str, event: str) -> tuple[int, int]:
        """Collectives begun and waited for between two events."""
        before, after = self.at(first), self.at(event)
        return after.started - before.started, after.waited - before.waited


@contextmanager
def moments(model: nn.Module) -> Iterator[Moments]:
    """Records the block's modules; its hooks come after those that the engine has put there."""
    recorded = Moments()
    waits: list[Any] = []
    original = dist.Work.wait

    def wait(work: Any, *args: Any) -> Any:
        result = original(work, *args)
        waits.append(work)
        return result

    with trace.collectives() as sent, mock.patch.object(dist.Work, "wait", wait):

        def note(event: str) -> Any:
            return lambda *_: recorded.append(Moment(event, len(sent), len(waits)))

        handles = []
        for name, module in model.named_children():
            handles += [
                module.register_forward_pre_hook(note(f"forward_pre {name}")),
                module.register_forward_hook(note(f"forward {name}")),
                module.register_full_backward_pre_hook(note(f"backward_pre {name}")),
            ]
        try:
            yield recorded
        finally:
            for handle in handles:
                handle.remove()
