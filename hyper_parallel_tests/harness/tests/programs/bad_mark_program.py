"""A case whose watchdog is no number of seconds."""

from __future__ import annotations

import pytest


@pytest.mark.watchdog("soon")
def test_nothing(world):
    pass
