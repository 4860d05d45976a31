"""Rank 1 collects one case more than rank 0."""

from __future__ import annotations

import os


def test_first(world):
    pass


if os.environ["RANK"] == "1":

    def test_second(world):
        pass
