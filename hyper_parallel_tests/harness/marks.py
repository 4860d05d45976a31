"""The marks that a case carries, and how the harness reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hyper_parallel_tests.harness.options import Options

DEFAULT_WATCHDOG_S = 60.0

MARKERS = (
    "contract(*ids): the contracts that this case holds an engine to",
    f"watchdog(seconds): how long one case may take on all ranks (default {DEFAULT_WATCHDOG_S:.0f} s)",
    "steps(default, nightly=, weekly=, seconds=): how many steps the case trains in a run of each size, which the "
    "fixture of that name gives it, and how many seconds one may take, which its watchdog gets more",
    "own_process_group: the case destroys or replaces the default process group; fresh ranks follow",
    "collectives_only: the case sends no messages from rank to rank, so that the same ranks may go on where it is "
    "expected to fail and does so alike on all of them",
)


def contract(*ids: str) -> Callable[[Any], Any]:
    """Say which contracts a case implements.

    Args:
        ids: contract ids as the domain's contracts.toml spells them, at least one.
    """
    if not ids or not all(isinstance(one, str) and one for one in ids):
        raise TypeError('contract() takes at least one contract id, e.g. @contract("COL-1-03")')
    return pytest.mark.contract(*ids)


def contracts_of(item: pytest.Item) -> tuple[str, ...]:
    """The contract ids that `item` cites, nearest mark first, each once."""
    found = [one for mark in item.iter_markers("contract") for one in mark.args]
    return tuple(dict.fromkeys(found))


def steps_of(item: pytest.Item, options: Options) -> int | None:
    """How many steps `item` trains in this run, None where it does not say how many.

    Raises:
        pytest.UsageError: the mark lacks a size, or a number in it is not positive.
    """
    mark = item.get_closest_marker("steps")
    if mark is None:
        return None
    said = {**dict(zip(["default"], mark.args, strict=False)), **mark.kwargs}
    whole = all(type(said.get(size)) is int and said[size] > 0 for size in ("default", "nightly", "weekly"))
    if not whole or len(mark.args) != 1 or len(said) != 4 or not said.get("seconds", 0) > 0:
        raise pytest.UsageError(
            f"{item.nodeid}: steps takes positive numbers like steps(200, nightly=2000, weekly=20000, seconds=0.1), "
            f"got {mark.args!r} and {mark.kwargs!r}"
        )
    return options.steps or said[options.size]


def limit_of(item: pytest.Item, options: Options) -> float | None:
    """The seconds that `item` may take, None where it leaves them to the launch: its watchdog's and its steps'."""
    own, steps = watchdog_of(item), steps_of(item, options)
    if steps is None:
        return own
    each = item.get_closest_marker("steps").kwargs["seconds"]
    return (own or options.watchdog or DEFAULT_WATCHDOG_S) + steps * each


def watchdog_of(item: pytest.Item) -> float | None:
    """The limit in seconds that `item` sets itself, None where it sets none."""
    mark = item.get_closest_marker("watchdog")
    if mark is None:
        return None
    if len(mark.args) != 1 or not isinstance(mark.args[0], (int, float)) or mark.args[0] <= 0:
        raise pytest.UsageError(f"{item.nodeid}: watchdog takes one positive number of seconds, got {mark.args!r}")
    return float(mark.args[0])
