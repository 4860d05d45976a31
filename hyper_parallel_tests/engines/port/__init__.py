"""The port: what the cases may ask of an engine.

One module per capability holds one Protocol, named after the module (``fully_shard`` -> ``FullyShard``).
Every public name of the Protocol is a member of the port; an engine offers it under the same name in its
module ``<engine>/<capability>.py``. Names follow HyperParallel's public API.

A member that an engine does not have is bound there to ``Unsupported(reason)`` and raises ``EngineUnsupported`` on
use.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass


@dataclass(frozen=True)
class Unsupported:
    """Stands in an engine's module for a member that the engine does not offer.

    Args:
        reason: one sentence for the matrix page, e.g. "no pipeline schedules before 0.2".
    """

    reason: str


class EngineUnsupported(Exception):
    """The engine does not offer a port member, or not with these arguments."""

    def __init__(self, engine: str, member: str, reason: str) -> None:
        super().__init__(f"engine {engine} does not offer {member}: {reason}")
        self.engine, self.member, self.reason = engine, member, reason


def members(protocol: type) -> frozenset[str]:
    """Names that ``protocol`` asks for: its methods and its annotated attributes."""
    names = set(vars(protocol)) | set(vars(protocol).get("__annotations__", {}))
    return frozenset(name for name in names if not name.startswith("_"))


def _discover() -> dict[str, type]:
    # A Bazel target sees only the capabilities it depends on, so that a change in one does not re-run the
    # tests of the others: the list is what is there, not a list written by hand.
    found = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        protocol = "".join(word.capitalize() for word in module.split("_"))
        found[module] = getattr(importlib.import_module(f"{__name__}.{module}"), protocol)
    return found


CAPABILITIES: dict[str, type] = _discover()
"""Capability (module name) -> its Protocol, for the capabilities that this target depends on."""
