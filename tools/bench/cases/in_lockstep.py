"""The trivial case for this net: the default process group is there already."""

from __future__ import annotations

from typing import Any

import pytest

from tools.bench.cases import settings, trivial

_MARKS = [pytest.mark.own_process_group] if settings.fresh_ranks() else []


@pytest.mark.parametrize("number", [pytest.param(number, marks=_MARKS) for number in range(settings.cases())])
def test_all_reduce(world: Any, number: int) -> None:
    """All ranks add up one element."""
    trivial.all_reduce(number)


if settings.has_loop():

    def test_bare_loop(world: Any) -> None:
        """The same without a launcher between."""
        trivial.bare_loop()
