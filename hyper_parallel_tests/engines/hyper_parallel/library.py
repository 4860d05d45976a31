"""The library itself: imported for PyTorch, and asked what it has.

Its modules move between versions, so nothing here goes by a version: a member is looked for in all places where
it is known to have been.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, NoReturn
from unittest import mock

from hyper_parallel_tests.engines.port import EngineUnsupported, Unsupported

try:
    # By this variable the library decides between MindSpore and PyTorch, once.
    with mock.patch.dict(os.environ, HYPER_PARALLEL_PLATFORM="torch"):
        import hyper_parallel

        _platform = hyper_parallel.get_platform() if hasattr(hyper_parallel, "get_platform") else None
except ModuleNotFoundError as error:
    raise ImportError(
        f"engine hyper_parallel needs the library hyper_parallel with its dependencies, but {error.name} is not on the "
        "module path: install it, or name a checkout of it"
    ) from error

__all__ = ["find", "offered", "platform", "platform_has", "refuse"]


def find(*places: str) -> Any | None:
    """What is at the first of ``places`` ("module:name") that the library has; None where it has none of them."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise
            continue
        if hasattr(found, name):
            return getattr(found, name)
    return None


def offered(*places: str, reason: str) -> Any:
    """What ``find`` finds, or else that the library does not offer it, for ``reason``."""
    found = find(*places)
    return Unsupported(reason) if found is None else found


def refuse(member: str, reason: str) -> NoReturn:
    """Ends a call of a member that the library has, but not with these arguments.

    Raises:
        EngineUnsupported: always.
    """
    raise EngineUnsupported("hyper_parallel", member, reason)


def platform() -> Any:
    """The library's layer over the framework, with its collectives; None where the library has no such layer."""
    return _platform


def platform_has(method: str) -> Callable[[Any], Any]:
    """Decorates a member that calls ``method`` of that layer: not offered where there is no such method."""
    there = hasattr(_platform, method)
    return lambda member: member if there else Unsupported(f"this version of the library has no {method} of its own")
