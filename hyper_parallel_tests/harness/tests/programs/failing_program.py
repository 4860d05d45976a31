"""Cases that all fail."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("number", range(5))
def test_number(number):
    pytest.fail(f"number {number}")
