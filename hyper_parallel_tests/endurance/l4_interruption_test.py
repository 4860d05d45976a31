"""Killed by SIGKILL at random, started anew, killed again: bit for bit the run that was never stopped."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.endurance.interruption import assert_continues
from hyper_parallel_tests.endurance.kills import drawn
from hyper_parallel_tests.endurance.training import INTERVAL, LAYOUTS, cards_of
from hyper_parallel_tests.harness import contract

KILLS = 2


@contract("EN-02")
@pytest.mark.watchdog(180)
@pytest.mark.steps(16, nightly=400, weekly=4000, seconds=0.5)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_killed_at_random(engine, world, ledger, tmp_path, steps, layout):
    """Killed twice, at steps, ranks and moments that are drawn by the number of steps, the run goes on."""
    kills = drawn(steps, steps, INTERVAL + 1, cards_of(layout), KILLS)
    assert_continues(world, ledger["exact"], tmp_path, layout, steps, kills)
