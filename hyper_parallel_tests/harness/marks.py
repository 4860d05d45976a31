"""The marks that a case carries, and how the harness reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

DEFAULT_WATCHDOG_S = 60.0

MARKERS = (
    "contract(*ids): the contracts that this case holds an engine to",
    f"watchdog(seconds): how long one case may take on all ranks (default {DEFAULT_WATCHDOG_S:.0f} s)",
    "own_process_group: the case destroys or replaces the default process group; fresh ranks follow",
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


def watchdog_of(item: pytest.Item) -> float | None:
    """The limit in seconds that `item` asks for, None where it asks for none."""
    mark = item.get_closest_marker("watchdog")
    if mark is None:
        return None
    if len(mark.args) != 1 or not isinstance(mark.args[0], (int, float)) or mark.args[0] <= 0:
        raise pytest.UsageError(f"{item.nodeid}: watchdog takes one positive number of seconds, got {mark.args!r}")
    return float(mark.args[0])
