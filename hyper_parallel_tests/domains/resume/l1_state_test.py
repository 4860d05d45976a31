"""All ingredients of a run in a trainer that had other weights and seeds until it was restored."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from hyper_parallel_tests.domains.resume.observation import ingredients
from hyper_parallel_tests.domains.resume.runs import EVERYTHING, begun, made
from hyper_parallel_tests.harness import assert_equal, contract

STEPS, MICRO_BATCHES = 3, 2
# Of a target's cards.
LAYOUTS = {1: "one", 2: "fsdp"}


def in_the_middle(world: Any) -> Any:
    """A trainer in the middle of a window, a warm-up, an epoch, a log interval, and a pair of normal numbers."""
    trainer = begun(world, EVERYTHING, LAYOUTS[world.size], steps=STEPS, micro_batches=MICRO_BATCHES)
    random.gauss(0, 1), np.random.randn()
    return trainer


@contract("RS-1-01")
def test_restored(engine, world, artifacts):
    """A fresh trainer has every ingredient as it was at the save; a report names those that differ."""
    trainer = in_the_middle(world)
    expected = ingredients(trainer)
    trainer.save_checkpoint(artifacts / "checkpoint")
    fresh = made(world, EVERYTHING, LAYOUTS[world.size], stranger=True)
    fresh.load_checkpoint(artifacts / "checkpoint")
    assert_equal(ingredients(fresh), expected, what="ingredients")


@contract("RS-1-01")
def test_saving_changes_nothing(engine, world, artifacts):
    """Nor does a save change any in the trainer that goes on."""
    trainer = in_the_middle(world)
    before = ingredients(trainer)
    trainer.save_checkpoint(artifacts / "checkpoint")
    assert_equal(ingredients(trainer), before, what="ingredients")
