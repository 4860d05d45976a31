"""Put a defect into running code and take it out again."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_StandIn = TypeVar("_StandIn", bound=Callable[..., Any])


class FaultDoesNotFit(Exception):
    """The code that a fault wants to break is not there, or not as the fault knows it; the fault needs an update."""


class Patch:
    """The hands of one applied fault on one rank.

    Attributes:
        rank: the rank that it is applied on.
    """

    def __init__(self, fault: str, rank: int, on_reached: Callable[[str], None]) -> None:
        self.rank = rank
        self._fault = fault
        self._on_reached = on_reached
        self._undo: list[Callable[[], None]] = []

    def replace(self, target: str, make: Callable[[Any], Any], *, parameters: Sequence[str] = ()) -> Any:
        """Put `make(original)` in the place of `target`.

        The replacement calls `reached()` where the defect takes effect.

        Args:
            target: "module:qualified.name" of a function, method or value, in the module that uses it.
            make: gets the original (the plain function of a static or class method), returns the replacement.
            parameters: the first parameter names that the original must have, so that a fault never silently misses.

        Returns:
            the original.

        Raises:
            FaultDoesNotFit: there is no such target, or its parameters are others.
        """
        owner, name = self._owner(target)
        held = inspect.getattr_static(owner, name)
        original = held.__func__ if isinstance(held, (staticmethod, classmethod)) else held
        self._check_parameters(target, original, parameters)
        replacement = make(original)
        if isinstance(held, (staticmethod, classmethod)):
            replacement = type(held)(replacement)
        own = vars(owner).get(name, _INHERITED)
        setattr(owner, name, replacement)
        self._undo.append(lambda: _put_back(owner, name, own))
        return original

    def around(self, target: str, *, parameters: Sequence[str] = ()) -> Callable[[_StandIn], _StandIn]:
        """Decorator: the function stands in for `target`; it gets the original, then the arguments of the call.

        Args:
            target, parameters: as for `replace`, which raises the same errors.
        """

        def put(stand_in: _StandIn) -> _StandIn:
            def make(original: Any) -> Any:
                @functools.wraps(original)
                def call(*args: Any, **kwargs: Any) -> Any:
                    return stand_in(original, *args, **kwargs)

                return call

            self.replace(target, make, parameters=parameters)
            return stand_in

        return put

    def reached(self) -> None:
        """Tell that the defect takes effect now: without this, a failing case proves nothing."""
        self._on_reached(self._fault)

    def at_the_end(self, action: Callable[[], None]) -> None:
        """Have `action` done when the fault is taken out, e.g. to empty a cache that has seen the defect."""
        self._undo.append(action)

    def undo(self) -> None:
        """Take all replacements out, the latest first."""
        while self._undo:
            self._undo.pop()()

    def _owner(self, target: str) -> tuple[Any, str]:
        module_name, colon, qualified = target.partition(":")
        if not colon or not qualified:
            raise FaultDoesNotFit(f"{self._fault}: target {target!r} is not of the form module:qualified.name")
        try:
            owner: Any = importlib.import_module(module_name)
        except ImportError as error:
            raise FaultDoesNotFit(f"{self._fault}: no module {module_name} ({error})") from error
        *path, name = qualified.split(".")
        for step in [*path, name]:
            if not hasattr(owner, step):
                raise FaultDoesNotFit(
                    f"{self._fault}: {module_name} has no {qualified}; update the fault to this version"
                )
            if step is not name:
                owner = getattr(owner, step)
        return owner, name

    def _check_parameters(self, target: str, original: Any, parameters: Sequence[str]) -> None:
        if not parameters:
            return
        found = tuple(inspect.signature(original).parameters)[: len(parameters)]
        if found != tuple(parameters):
            raise FaultDoesNotFit(
                f"{self._fault}: {target} takes {found}, the fault was written for {tuple(parameters)}"
            )


def _put_back(owner: Any, name: str, held: Any) -> None:
    if held is _INHERITED:
        delattr(owner, name)
    else:
        setattr(owner, name, held)


_INHERITED = object()
