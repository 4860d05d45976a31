"""What a fault says of itself, and where the catalogue keeps it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from hyper_parallel_tests.faults.patch import Patch

_LAYERS = ("l0", "l1", "l2", "l3", "l4")
_MECHANISM = {"catalogue", "patch"}


@dataclass(frozen=True)
class Fault:
    """One deliberate defect.

    Attributes:
        id: name in the catalogue, `<capability>-<what is wrong>`.
        symptom: what a user would see in training.
        capability: the domain that it belongs to.
        layer: the lowest layer that must catch it.
        must_fail: the contracts that must fail.
        ranks: who must show the failure: "all", "any", or the ranks.
        applied_on: who has the defect: "all", or the ranks.
        watchdog: seconds one case may take under it, None for the case's own; hang faults set it.
        install: puts the defect in.
    """

    id: str
    symptom: str
    capability: str
    layer: str
    must_fail: tuple[str, ...]
    ranks: str | tuple[int, ...]
    applied_on: str | tuple[int, ...]
    watchdog: float | None
    install: Callable[[Patch], None]


_FAULTS: dict[str, Fault] = {}


def fault(
    *,
    id: str,
    symptom: str,
    capability: str,
    layer: str,
    must_fail: Sequence[str],
    ranks: str | Sequence[int] = "any",
    applied_on: str | Sequence[int] = "all",
    watchdog: float | None = None,
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Declare the decorated function as a fault; arguments as in `Fault`.

    Raises:
        ValueError: an argument says nothing, a layer or a choice of ranks does not exist, the id is taken.
    """
    if layer not in _LAYERS:
        raise ValueError(f"fault {id}: layer {layer!r} is none of {', '.join(_LAYERS)}")
    if not must_fail or not symptom or not capability:
        raise ValueError(f"fault {id}: it needs a symptom, a capability and at least one contract that must fail")
    if isinstance(ranks, str) and ranks not in {"all", "any"}:
        raise ValueError(f'fault {id}: ranks is "all", "any" or a list of ranks, not {ranks!r}')
    if isinstance(applied_on, str) and applied_on != "all":
        raise ValueError(f'fault {id}: applied_on is "all" or a list of ranks, not {applied_on!r}')

    def declare(install: Callable[[Patch], None]) -> Callable[[Patch], None]:
        known = _FAULTS.get(id)
        if known is not None and known.install.__module__ != install.__module__:
            raise ValueError(f"fault {id} is declared twice: in {known.install.__module__} and {install.__module__}")
        _FAULTS[id] = Fault(
            id=id,
            symptom=symptom,
            capability=capability,
            layer=layer,
            must_fail=tuple(must_fail),
            ranks=ranks if isinstance(ranks, str) else tuple(ranks),
            applied_on=applied_on if isinstance(applied_on, str) else tuple(applied_on),
            watchdog=watchdog,
            install=install,
        )
        return install

    return declare


def catalogue(name: str) -> list[Fault]:
    """The faults that `faults/<name>.py` declares, in its order; a dotted name is a module of its own."""
    module = importlib.import_module(name if "." in name else f"hyper_parallel_tests.faults.{name}")
    return [one for one in _FAULTS.values() if one.install.__module__ == module.__name__]


def find(id: str, names: Sequence[str] = ()) -> Fault:
    """The fault with this id, from the named catalogues, or else from whichever this target can see.

    Raises:
        KeyError: there is none; names the nearest ids.
    """
    for name in names or catalogues():
        catalogue(name)
    if id not in _FAULTS:
        near = get_close_matches(id, _FAULTS, n=3)
        meant = (
            f"did you mean {' or '.join(near)}?"
            if near
            else f"{len(_FAULTS)} are known; their ids stand in its modules"
        )
        raise KeyError(f"no fault {id!r} in the catalogue: {meant}")
    return _FAULTS[id]


def catalogues() -> list[str]:
    """Names of the catalogue modules that this target can see."""
    import hyper_parallel_tests.faults as package

    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return [name for name in names if name not in _MECHANISM and not name.endswith("_test")]


def apply(id: str, rank: int, on_reached: Callable[[str], None], names: Sequence[str] = ()) -> Patch:
    """Put fault `id` into this process, if it is meant for `rank`.

    Raises:
        FaultDoesNotFit: the code to break is not as the fault knows it.
    """
    chosen = find(id, names)
    patch = Patch(id, rank, on_reached)
    if chosen.applied_on == "all" or rank in chosen.applied_on:
        chosen.install(patch)
    return patch
