"""Runs that end for want of progress, interrupted at the validation that tells, and before it."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.resume.runs import PLAIN, continued, saved
from hyper_parallel_tests.harness import contract, jobs

LAYOUT, CARDS, STEPS = "fsdp", 2, 3


@contract("RS-2-02")
@pytest.mark.parametrize("at", [3, 2, 1], ids=["at_its_end", "just_before", "before"])
def test_early_end(engine, world, artifacts, at):
    """A run without progress ends after two validations without a better one, wherever it was interrupted."""
    plan = PLAIN.also("--optimizer.lr=0", "--callbacks=[validation, best_metric]", "--best_metric.patience=2")
    folder = artifacts / "checkpoint"
    jobs.run(world, saved, plan, LAYOUT, folder, at, cards=CARDS)
    found = jobs.run(world, continued, plan, LAYOUT, folder, cards=CARDS)[0]
    assert len(found.track.steps) == STEPS - at
    assert found.best["best_step"] == 1
    assert found.best["without_better"] == 2
