"""What each rank computes, sends and receives, against the schedule's plan."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.pipeline_parallel.actions import parse
from hyper_parallel_tests.domains.pipeline_parallel.kinds import each_common_kind, each_kind
from hyper_parallel_tests.domains.pipeline_parallel.runs import assert_as_planned, observed
from hyper_parallel_tests.harness import contract


@contract("PP-1-01")
@each_kind
@pytest.mark.parametrize("rounds", [1, 2], ids=["as_many_micro_batches_as_ranks", "twice_as_many"])
def test_order(engine, world, artifacts, kind, rounds):
    """Computations come in the plan's order, and messages in that of their computations, on each rank."""
    micro_batches = rounds * world.size
    record = observed(engine, world, kind, artifacts, micro_batches)
    assert_as_planned(record, kind.plan(engine, world.size, micro_batches), kind, world)


@contract("PP-1-01")
@each_common_kind
def test_order_of_the_first_run(engine, world, artifacts, kind):
    """The first run is like the others: no stage computes a micro-batch more than once."""
    record = observed(engine, world, kind, artifacts, world.size, runs=1)
    assert_as_planned(record, kind.plan(engine, world.size, world.size), kind, world)


@contract("PP-1-01")
@each_common_kind
def test_fewer_micro_batches_than_stages(engine, world, artifacts, kind):
    """One micro-batch goes through all stages and back, and so do some that are fewer than the stages."""
    for micro_batches in sorted({1, world.size - 1}):
        record = observed(engine, world, kind, artifacts, micro_batches)
        assert_as_planned(record, kind.plan(engine, world.size, micro_batches), kind, world)


@contract("PP-1-02")
@each_kind
def test_activations_of_a_finished_micro_batch(engine, world, artifacts, kind):
    """When a computation begins, a rank has the activations of those micro-batches that it has not finished."""
    micro_batches = 2 * world.size
    record = observed(engine, world, kind, artifacts, micro_batches)
    unfinished: set[tuple[int, int]] = set()
    for text, kept in record.kept:
        assert kept <= unfinished, f"at {text} also those of {sorted(kept - unfinished)}"
        action = parse(text)
        if action.kind == "F":
            unfinished.add((action.stage, action.microbatch))
        elif action.kind == "W":
            unfinished.discard((action.stage, action.microbatch))
    assert unfinished == set()
