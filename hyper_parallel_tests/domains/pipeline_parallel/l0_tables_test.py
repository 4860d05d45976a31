"""Tables of schedules by name: what each rank computes, and in which order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hyper_parallel_tests.domains.pipeline_parallel.plans import PLANS, Plan
from hyper_parallel_tests.domains.pipeline_parallel.simulator import assert_runs, parse, simulate
from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.harness.properties import PROFILE

each_plan = pytest.mark.parametrize("plan", PLANS, ids=str)

# Sizes are small already: to shrink a failing one takes longer than everything else.
FEWER = settings(PROFILE, max_examples=10, phases=(Phase.explicit, Phase.generate))


def computations(engine: Any, plan: Plan, ranks: int, microbatches: int) -> dict[int, list[str]]:
    """The table without messages."""
    return engine.schedule_table(
        plan.schedule, ranks, microbatches, stages_per_rank=plan.stages_per_rank, with_communication=False
    )


def table_or_refusal(engine: Any, plan: Plan, ranks: int, microbatches: int) -> dict[int, list[str]] | ValueError:
    """The table without messages, or why there is none."""
    try:
        return computations(engine, plan, ranks, microbatches)
    except ValueError as refusal:
        return refusal


@contract("PP-0-02")
@each_plan
def test_table_is_complete_in_order_and_within_its_memory(engine, plan):
    """Each stage has each micro-batch once forward and once backward, in an order that can run, not too early."""

    @FEWER
    @given(size=st.sampled_from(plan.sizes()))
    def holds(size):
        ranks, microbatches = size
        assert_runs(
            computations(engine, plan, ranks, microbatches),
            stages=ranks * plan.stages_per_rank,
            microbatches=microbatches,
            communication=False,
            limits=plan.limits(ranks, microbatches),
        )

    holds()


@contract("PP-0-02")
@each_plan
def test_any_number_of_microbatches_is_right_or_refused(engine, plan):
    """Fewer micro-batches than stages, or a number that does not divide: a table that runs, or an error with it."""
    for ranks, microbatches in itertools.product(range(2, 5), range(1, 10)):
        found = table_or_refusal(engine, plan, ranks, microbatches)
        if isinstance(found, ValueError):
            assert str(microbatches) in str(found), f"{ranks} ranks, {microbatches} micro-batches"
            assert (ranks, microbatches) not in plan.sizes(), found
        else:
            stages = ranks * plan.stages_per_rank
            assert_runs(found, stages=stages, microbatches=microbatches, communication=False)


@contract("PP-0-02")
@each_plan
def test_one_rank_has_nobody_to_wait_for(engine, plan):
    """A pipeline of one rank computes everything by itself, without a message and without a bubble."""
    table = engine.schedule_table(plan.schedule, 1, 4, stages_per_rank=plan.stages_per_rank)
    assert simulate(table, stages=plan.stages_per_rank, microbatches=4).bubble_fraction == 0


@contract("PP-0-02")
@each_plan
def test_forward_passes_are_in_the_order_of_the_batch(engine, plan):
    """No stage lets a micro-batch overtake another on its way forward."""
    for rank, actions in computations(engine, plan, 4, 8).items():
        forward = [one for one in map(parse, actions) if one.kind == "F"]
        for stage in {one.stage for one in forward}:
            assert [one.microbatch for one in forward if one.stage == stage] == list(range(8)), (rank, stage)


@contract("PP-0-02")
def test_gpipe_is_forward_first(engine):
    """GPipe has all forward passes of a rank before all of its backward passes."""
    for rank, actions in engine.schedule_table("GPipe", 4, 6, with_communication=False).items():
        assert "".join(parse(one).kind for one in actions) == "F" * 6 + "B" * 6, rank


@contract("PP-0-02")
def test_names_are_known_in_any_case(engine):
    """The name of a schedule may be in lower or upper case."""
    assert engine.schedule_table("gpipe", 2, 3) == engine.schedule_table("GPIPE", 2, 3)


@contract("PP-0-02")
@pytest.mark.parametrize("plan", [one for one in PLANS if one.stages_per_rank > 1], ids=str)
def test_stages_go_round_or_back(engine, plan):
    """Stages of a rank are as many apart as there are ranks, or mirrored where the schedule is a V."""
    table = computations(engine, plan, 4, 8)
    for rank, actions in table.items():
        found = sorted({parse(one).stage for one in actions})
        if plan.schedule in ("ZBVZeroBubble", "DualPipeV"):
            assert found == [rank, 7 - rank]
        else:
            assert found == [rank + 4 * one for one in range(plan.stages_per_rank)]


@contract("PP-0-02")
@pytest.mark.parametrize("schedule", ["TwoF1B", "PipelineScheduleMulti", ""])
def test_unknown_schedule(engine, schedule):
    """What is no schedule is an error that has the name."""
    with pytest.raises(ValueError, match=schedule or "''"):
        engine.schedule_table(schedule, 2, 4)


@contract("PP-0-02")
@pytest.mark.parametrize(
    ("schedule", "stages_per_rank"),
    [("GPipe", 2), ("1F1B", 2), ("ZBVZeroBubble", 3), ("DualPipeV", 3)],
)
def test_wrong_number_of_stages_on_a_rank(engine, schedule, stages_per_rank):
    """A schedule that has one stage a rank, or two, refuses another number and names it."""
    with pytest.raises(ValueError, match=rf"\b{stages_per_rank}\b"):
        engine.schedule_table(schedule, 2, 8, stages_per_rank=stages_per_rank)


@contract("PP-0-02")
@pytest.mark.parametrize(("ranks", "microbatches"), [(0, 4), (2, 0), (2, -1)])
def test_nothing_to_schedule(engine, ranks, microbatches):
    """A pipeline without ranks, or a batch without micro-batches, is an error."""
    with pytest.raises(ValueError, match=rf"\b{ranks}\b.*{microbatches}\b"):
        engine.schedule_table("GPipe", ranks, microbatches)
