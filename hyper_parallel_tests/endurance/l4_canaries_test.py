"""The decoder's whole training with layers divided over ranks: the pairs that most users train with, on 4 cards."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.endurance.canaries import assert_learns, learns
from hyper_parallel_tests.endurance.combinations import tensor_fsdp, tensor_pipeline
from hyper_parallel_tests.harness import contract


@contract("EN-05")
@pytest.mark.steps(100, nightly=5000, weekly=50000, seconds=0.5)
@pytest.mark.parametrize("make", [tensor_fsdp, tensor_pipeline], ids=["tensor_fsdp", "tensor_pipeline"])
def test_learns_as_on_one_card(engine, world, ledger, artifacts, steps, make):
    """The loss falls by half, along the single card's curve and to its parameters."""
    found = learns(engine, world, make, steps)
    assert_learns(world, found, ledger["endurance_canaries"], artifacts, f"{make.__name__}, {steps} steps")
