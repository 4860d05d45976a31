"""A long run that says how many steps it was given, and a case that does not say how many it wants."""

from __future__ import annotations

import pytest


@pytest.mark.steps(200, nightly=2000, weekly=20000, seconds=0.5)
def test_long(steps):
    raise AssertionError(f"{steps} steps")


def test_unsaid(steps):
    pass
