"""Loads an engine by name and hands out its port members."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
from types import ModuleType
from typing import Any

from hyper_parallel_tests.engines.port import CAPABILITIES, EngineUnsupported, Unsupported, members

__all__ = ["Engine", "EngineUnsupported", "load"]

_PACKAGE = __name__.rpartition(".")[0]
_NO_ENGINES = {"port", "shared"}


class Engine:
    """One system under test: every port member is an attribute, imported on first use.

    Raises:
        AttributeError: the port has no such member; near matches are named.
        EngineUnsupported: the engine declares the member ``Unsupported``, or has no module for its capability.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def version(self) -> str:
        """Version of the system under test, as the engine's package tells it."""
        return importlib.import_module(self._package).version()

    @property
    def capabilities(self) -> list[str]:
        """Those in reach that the engine has a module for; imports none of them."""
        names = [module.name for module in pkgutil.iter_modules(importlib.import_module(self._package).__path__)]
        return [capability for capability in CAPABILITIES if capability in names]

    @property
    def _package(self) -> str:
        return f"{_PACKAGE}.{self.name}"

    def __getattr__(self, member: str) -> Any:
        capability = _OWNERS.get(member)
        if capability is None:
            raise AttributeError(_unknown(member))
        value = getattr(self._module(capability, member), member)
        if isinstance(value, Unsupported):
            raise EngineUnsupported(self.name, member, value.reason)
        return value

    def _module(self, capability: str, member: str) -> ModuleType:
        """The engine's module of a capability; an engine that has no such module offers none of its members."""
        name = f"{self._package}.{capability}"
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise EngineUnsupported(self.name, member, f"it has no {capability}") from None

    def __reduce__(self) -> None:
        raise TypeError("a baseline runs without the engine, so an engine does not travel to one")

    def __repr__(self) -> str:
        return f"Engine({self.name!r})"


def load(name: str) -> Engine:
    """Returns the engine called ``name`` (a package next to this module).

    Raises:
        ValueError: there is no such engine; the known ones are named.
    """
    if name not in _known():
        raise ValueError(f"no engine {name!r}: expected one of {', '.join(_known())}")
    return Engine(name)


def _known() -> list[str]:
    siblings = pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__)
    return sorted(info.name for info in siblings if info.ispkg and info.name not in _NO_ENGINES)


def _owners() -> dict[str, str]:
    owners: dict[str, str] = {}
    for capability, protocol in CAPABILITIES.items():
        for member in members(protocol):
            if member in owners:
                raise TypeError(f"port member {member} is in both {owners[member]} and {capability}: rename one")
            owners[member] = capability
    return owners


def _unknown(member: str) -> str:
    near = difflib.get_close_matches(member, _OWNERS, n=3)
    hint = f"; near matches: {', '.join(near)}" if near else ""
    return (
        f"the port has no member {member!r}{hint}. Capabilities in reach: {', '.join(CAPABILITIES)}; "
        "for another one add //hyper_parallel_tests/engines:<capability> to the target's deps"
    )


_OWNERS = _owners()
