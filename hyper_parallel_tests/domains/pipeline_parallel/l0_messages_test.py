"""What ranks send to each other, and how long they wait."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from hyper_parallel_tests.domains.pipeline_parallel.plans import PLANS, Plan, one_f_one_b
from hyper_parallel_tests.domains.pipeline_parallel.simulator import assert_runs, parse, simulate
from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.harness.properties import PROFILE

each_plan = pytest.mark.parametrize("plan", PLANS, ids=str)

# Sizes are small already: to shrink a failing one takes longer than everything else.
FEWER = settings(PROFILE, max_examples=10, phases=(Phase.explicit, Phase.generate))


def assert_messages(engine: Any, plan: Plan, ranks: int, microbatches: int) -> None:
    """Fails where the table with its messages does not run."""
    table = engine.schedule_table(plan.schedule, ranks, microbatches, stages_per_rank=plan.stages_per_rank)
    assert_runs(table, stages=ranks * plan.stages_per_rank, microbatches=microbatches)


@contract("PP-0-02", "PP-0-03")
@each_plan
def test_messages_match_and_nobody_waits_in_a_circle(engine, plan):
    """Each send has one receive, in one order on both ends, and all ranks come to an end even if a send blocks."""

    @FEWER
    @given(size=st.sampled_from([(ranks, count) for ranks, count in plan.sizes() if ranks <= count]))
    @example(size=plan.largest)
    def holds(size):
        assert_messages(engine, plan, *size)

    holds()


@contract("PP-0-02", "PP-0-03")
@pytest.mark.parametrize("plan", [one for one in PLANS if one.takes_few], ids=str)
def test_messages_match_with_few_microbatches(engine, plan):
    """The same where there are fewer micro-batches than ranks."""

    @FEWER
    @given(size=st.sampled_from([(ranks, count) for ranks, count in plan.sizes() if ranks > count]))
    def holds(size):
        assert_messages(engine, plan, *size)

    holds()


@contract("PP-0-03")
@each_plan
def test_bubble_is_that_of_the_formula(engine, plan):
    """Once the pipeline is full, ranks wait (p - 1) / (v m + p - 1) of the time, or less by the filled-in W."""

    @FEWER
    @given(size=st.sampled_from(plan.sizes(filled=True)))
    def holds(size):
        ranks, microbatches = size
        table = engine.schedule_table(
            plan.schedule, ranks, microbatches, stages_per_rank=plan.stages_per_rank, with_communication=False
        )
        run = simulate(table, stages=ranks * plan.stages_per_rank, microbatches=microbatches, communication=False)
        assert run.bubble_fraction == plan.bubble_fraction(ranks, microbatches)

    holds()


@contract("PP-0-03")
@each_plan
def test_messages_leave_the_computations_in_their_order(engine, plan):
    """With its messages a table has the same computations in the same order."""
    for microbatches in (8, 16):
        lowered, plain = (
            engine.schedule_table(
                plan.schedule, 4, microbatches, stages_per_rank=plan.stages_per_rank, with_communication=messages
            )
            for messages in (True, False)
        )
        assert {rank: [one for one in lowered[rank] if "_" not in parse(one).kind] for rank in lowered} == plain


@contract("PP-0-03")
def test_messages_of_one_f_one_b(engine, artifacts):
    """1F1B from a file, with any number of micro-batches, gets the right messages and has the bubble of the formula."""
    path = artifacts / "1f1b.csv"

    @FEWER
    @given(ranks=st.integers(2, 16), microbatches=st.integers(1, 12))
    @example(ranks=16, microbatches=64)
    def holds(ranks, microbatches):
        engine.dump_schedule_csv(one_f_one_b(ranks, microbatches), path)
        table = engine.load_schedule_csv(path, ranks, microbatches)
        run = simulate(
            table,
            stages=ranks,
            microbatches=microbatches,
            limits={rank: ranks - rank for rank in range(ranks)},
        )
        assert run.makespan == 3 * (microbatches + ranks - 1)

    holds()
