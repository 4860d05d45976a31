"""Records in which order the modules of a model enter and leave forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

__all__ = ["Events", "hooks"]


class Events(list[str]):
    """Lines such as `forward_pre layers.0`, in the order of happening; the model itself is called `root`."""

    def mark(self, what: str) -> None:
        """Add a line of the case's own, to see where it falls in the order."""
        self.append(what)

    def of(self, module: str) -> list[str]:
        """Kinds of the events of one module: forward_pre, forward, backward_pre, backward."""
        return [line.split(" ", 1)[0] for line in self if line.split(" ", 1)[1:] == [module]]

    def only(self, *kinds: str) -> list[str]:
        """The lines of these kinds."""
        return [line for line in self if line.split(" ", 1)[0] in kinds]


@contextmanager
def hooks(model: nn.Module) -> Iterator[Events]:
    """Record the forward_pre, forward, backward_pre and backward hooks of every module inside the block.

    The hooks are registered on entry, so they come after those of the same kind that an engine put there
    before, and they are gone after the block. Calls of `module.forward()` bypass them, as they bypass every
    hook.
    """
    events = Events()
    handles = []
    for name, module in model.named_modules():
        handles += _register(events, name or "root", module)
    try:
        yield events
    finally:
        for handle in handles:
            handle.remove()


def _register(events: Events, name: str, module: nn.Module) -> list[Any]:
    def note(kind: str) -> Any:
        return lambda *_: events.append(f"{kind} {name}")

    return [
        module.register_forward_pre_hook(note("forward_pre")),
        module.register_forward_hook(note("forward")),
        module.register_full_backward_pre_hook(note("backward_pre")),
        module.register_full_backward_hook(note("backward")),
    ]
