"""Killed in the middle of a save: the checkpoint before it is what the run goes on from, bit for bit."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.endurance.interruption import assert_continues
from hyper_parallel_tests.endurance.kills import Kill
from hyper_parallel_tests.endurance.training import INTERVAL
from hyper_parallel_tests.harness import contract


@contract("EN-02")
@pytest.mark.watchdog(180)
def test_killed_in_saves(engine, world, ledger, tmp_path):
    """Killed while a shard is written, then before a checkpoint is committed, the run goes on from the one before."""
    kills = [Kill(2 * INTERVAL, 1, "in_a_shard"), Kill(3 * INTERVAL, 0, "before_commit")]
    assert_continues(world, ledger["exact"], tmp_path, "fsdp", 3 * INTERVAL + 2, kills)
