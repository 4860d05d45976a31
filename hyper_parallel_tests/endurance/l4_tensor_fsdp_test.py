"""Layers divided by tensor parallelism whose parts are sharded, for many steps."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.endurance.combinations import tensor_fsdp, whole
from hyper_parallel_tests.endurance.long_run import assert_steady, long_run
from hyper_parallel_tests.harness import contract


@contract("EN-01")
@pytest.mark.steps(200, nightly=2000, weekly=20000, seconds=0.5)
def test_many_steps(engine, world, ledger, artifacts, steps):
    """Each step is finite, the losses are the single card's, and nothing that the process holds grows."""
    run = long_run(world, tensor_fsdp(engine, world), whole, steps, artifacts, "TP and FSDP")
    assert_steady(run, ledger, "endurance_losses")
