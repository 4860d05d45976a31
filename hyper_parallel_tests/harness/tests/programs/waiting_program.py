"""A case that waits, in the middle of a collective, until it is released; healthy ones around it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hyper_parallel_tests.harness.tests.programs.neighbour import neighbour

test_neighbour_before = neighbour


@pytest.mark.watchdog(600)
def test_waits(world):
    print("in the middle of the case", flush=True)
    if world.rank == 0:
        released = Path(os.environ["RELEASED"])
        while not released.exists():
            time.sleep(0.01)
    neighbour(world)


test_neighbour_after = neighbour
