"""A long run that says nothing of its weekly size."""

from __future__ import annotations

import pytest


@pytest.mark.steps(200, nightly=2000, seconds=0.5)
def test_nothing(steps):
    pass
