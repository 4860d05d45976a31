"""The decoder's whole training in shards, with recomputation and resumed at half, on 2 cards."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.endurance.canaries import assert_learns, learns, resumed
from hyper_parallel_tests.endurance.combinations import fsdp, fsdp_recomputation
from hyper_parallel_tests.harness import contract

long = pytest.mark.steps(100, nightly=5000, weekly=50000, seconds=0.5)


@contract("EN-05")
@long
def test_resumed_learns_as_on_one_card(engine, world, ledger, artifacts, steps):
    """A training that begins anew at half from what was saved is the single card's that never stopped."""
    found = resumed(engine, world, fsdp, steps, artifacts / "checkpoint")
    assert_learns(world, found, ledger["endurance_canaries"], artifacts, f"FSDP, resumed at half of {steps} steps")


@contract("EN-05")
@long
def test_recomputed_learns_as_on_one_card(engine, world, ledger, artifacts, steps):
    """The loss falls by half, along the single card's curve and to its parameters."""
    found = learns(engine, world, fsdp_recomputation, steps)
    assert_learns(world, found, ledger["endurance_canaries"], artifacts, f"FSDP and recomputation, {steps} steps")
