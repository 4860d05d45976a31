"""Decoders of several shapes on one card, beside their estimates: what the plans' own decoder has not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hyper_parallel_tests.domains.auto_parallel.programs import SHAPE, carry_out
from hyper_parallel_tests.engines.port.auto_parallel import Workload
from hyper_parallel_tests.harness import contract

WORKLOADS = {
    # Queries of eight heads, keys and values of one.
    "shared_key_heads": Workload(replace(SHAPE, hidden=32, heads=8, kv_heads=1), rows=8),
    # Mostly the table.
    "tied": Workload(replace(SHAPE, vocab=480, tied=True), rows=2),
    "untied": Workload(replace(SHAPE, vocab=480), rows=2),
    # Mostly activations.
    "long_rows": Workload(replace(SHAPE, seq=64), rows=8),
}


@contract("AP-2-01")
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_one_card_fits(engine, world, workload):
    """One card holds what the estimate says, up to the error that it states."""
    plan = engine.estimate_plan(workload, {})
    held = carry_out(engine, world, plan, workload).bytes
    assert abs(held - plan.memory) <= plan.memory_error * plan.memory, f"{held} bytes, estimated {plan.memory}"
