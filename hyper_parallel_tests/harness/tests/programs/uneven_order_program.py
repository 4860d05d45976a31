"""The ranks collect the same cases in different orders."""

from __future__ import annotations

import os

import pytest

LETTERS = ["a", "b", "c"]


@pytest.mark.parametrize("letter", LETTERS if os.environ["RANK"] == "0" else LETTERS[::-1])
def test_letter(world, letter):
    pass
