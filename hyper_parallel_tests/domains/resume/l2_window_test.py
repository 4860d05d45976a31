"""Runs that are saved in the middle of a window of micro-batches, with everything else in its middle too."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.resume.runs import EVERYTHING, continued, saved, straight
from hyper_parallel_tests.domains.resume.tracks import assert_same_run
from hyper_parallel_tests.harness import contract, jobs

LAYOUT, CARDS, STEPS = "fsdp", 2, 3


@contract("RS-2-02")
@pytest.mark.parametrize("micro_batches", [2, 3])
def test_open_window(engine, world, ledger, artifacts, micro_batches):
    """Saved with so many of four micro-batches done, a run ends the step as the one that was never stopped."""
    expected = straight(world, EVERYTHING, LAYOUT)
    folder = artifacts / "checkpoint"
    jobs.run(world, saved, EVERYTHING, LAYOUT, folder, STEPS, micro_batches, cards=CARDS)
    found = jobs.run(world, continued, EVERYTHING, LAYOUT, folder, cards=CARDS)
    for mine, theirs in zip(found, expected, strict=True):
        assert_same_run(mine, theirs.behind(STEPS), ledger["exact"])
