"""The judge of schedules itself: it refuses a wrong table for what is wrong with it, and measures a right one."""

from __future__ import annotations

from fractions import Fraction

import pytest

from hyper_parallel_tests.domains.pipeline_parallel.actions import BadSchedule, Defect, parse
from hyper_parallel_tests.domains.pipeline_parallel.plans import one_f_one_b
from hyper_parallel_tests.domains.pipeline_parallel.simulator import simulate
from hyper_parallel_tests.harness import contract

RIGHT = (
    "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
    "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1",
)


def table(*lines: str) -> dict[int, list[str]]:
    """A table from the text of its ranks."""
    return {rank: line.split() for rank, line in enumerate(lines)}


def with_change(rank: int, old: str, new: str) -> dict[int, list[str]]:
    """The right table with something else on one rank."""
    lines = list(RIGHT)
    assert f" {old} " in f" {lines[rank]} "
    lines[rank] = f" {lines[rank]} ".replace(f" {old} ", f" {new} ")
    return table(*lines)


@contract("PP-0-02", "PP-0-03")
def test_right_table():
    """A table without a defect runs, and its figures are those that one counts by hand."""
    run = simulate(table(*RIGHT), stages=2, microbatches=2, limits={0: 2, 1: 2})
    assert run.in_flight == {0: 2, 1: 2}
    assert run.makespan == 9
    assert run.bubble_fraction == Fraction(1, 3)


@contract("PP-0-02", "PP-0-03")
@pytest.mark.parametrize(
    ("defect", "rank", "old", "new"),
    [
        (Defect.UNREADABLE, 0, "0B1", "0C1"),
        (Defect.SURPLUS, 1, "1SEND_B1", "1SEND_B1 2F0"),
        (Defect.SURPLUS, 1, "1SEND_B1", "1SEND_B1 1F2"),
        (Defect.REPEATED, 0, "0F1", "0F1 0F1"),
        (Defect.REPEATED, 1, "1RECV_F1", "1RECV_F1 1RECV_F1"),
        (Defect.MISSING_FORWARD, 1, "1F1", ""),
        (Defect.MISSING_BACKWARD, 0, "0B1", ""),
        (Defect.MISSING_BACKWARD, 0, "0B1", "0W1"),
        (Defect.MISSING_WEIGHT_GRADIENT, 0, "0B1", "0I1"),
        (Defect.TWO_BACKWARDS, 0, "0B1", "0B1 0I1 0W1"),
        (Defect.BACKWARD_FIRST, 1, "1F1 1B0 1SEND_B0 1B1", "1B0 1SEND_B0 1B1 1F1"),
        (Defect.WEIGHT_GRADIENT_FIRST, 0, "0B1", "0W1 0I1"),
        (Defect.MISSING_SEND, 0, "0SEND_F1", ""),
        (Defect.MISSING_RECEIVE, 1, "1RECV_F1", ""),
        (Defect.NEEDLESS_MESSAGE, 1, "1B1", "1SEND_F1 1B1"),
        (Defect.NEEDLESS_MESSAGE, 0, "0F1", "0RECV_F1 0F1"),
        (Defect.SENT_TOO_EARLY, 0, "0F1 0SEND_F1", "0SEND_F1 0F1"),
        (Defect.RECEIVED_TOO_LATE, 1, "1RECV_F1 1F1", "1F1 1RECV_F1"),
        (Defect.MESSAGE_ORDER, 1, "1RECV_F0 1F0 1RECV_F1", "1RECV_F1 1RECV_F0 1F0"),
        (Defect.CIRCULAR_WAIT, 0, "0F1 0SEND_F1 0RECV_B0", "0F1 0RECV_B0 0SEND_F1"),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, Defect) else None,
)
def test_wrong_table_is_refused_for_what_is_wrong(defect, rank, old, new):
    """Each defect that a table of two stages can have is told by its name."""
    with pytest.raises(BadSchedule) as refusal:
        simulate(with_change(rank, old, new), stages=2, microbatches=2)
    assert refusal.value.defect is defect, refusal.value


@contract("PP-0-02")
def test_stage_on_two_ranks():
    """A stage whose micro-batches are on different ranks has moved, unless it is said to be spread."""
    lines = ("0F0 0B0 1RECV_F1 1F1 1B1 1SEND_B1 1F0 1B0", "0F1 0SEND_F1 0RECV_B1 0B1")
    moved = table(lines[0].replace("0B0", "").replace("1B0", "1B0 0B0"), lines[1])
    with pytest.raises(BadSchedule) as refusal:
        simulate(moved, stages=2, microbatches=2)
    assert refusal.value.defect is Defect.MOVED_STAGE
    simulate(moved, stages=2, microbatches=2, spread={0})


@contract("PP-0-02")
def test_backward_on_another_rank_than_forward():
    """Not even a spread stage can compute backward where it was not computed forward."""
    apart = table("0F0 0SEND_F0 0B1", "1RECV_F0 1F0 1B0 0F1 1F1 1B1 0B0")
    with pytest.raises(BadSchedule) as refusal:
        simulate(apart, stages=2, microbatches=2, spread={0})
    assert refusal.value.defect is Defect.MOVED_STAGE


@contract("PP-0-02")
@pytest.mark.parametrize(
    "line",
    ["1F0 0F0 1B0 0B0", "0F0 1F0 0B0 1B0", "0F0 1F0 0I0 1I0 1W0 0W0"],
    ids=["forward", "backward", "divided_backward"],
)
def test_stages_of_one_rank_in_the_wrong_order(line):
    """On one rank too, a stage is computed after the one that it depends on."""
    with pytest.raises(BadSchedule) as refusal:
        simulate(table(line), stages=2, microbatches=1)
    assert refusal.value.defect is Defect.STAGE_ORDER


@contract("PP-0-02")
def test_too_many_in_flight():
    """GPipe's order does not fit into 1F1B's memory; a rank without work holds nothing; W ends a divided pass."""
    with pytest.raises(BadSchedule) as refusal:
        simulate(table(*RIGHT), stages=2, microbatches=2, limits={0: 2, 1: 1})
    assert refusal.value.defect is Defect.TOO_MANY_IN_FLIGHT
    simulate(table(*RIGHT), stages=2, microbatches=2, limits={0: 2, 1: 2, 2: 0})
    divided = table("0F0 0I0 0F1 0I1 0W0 0W1")
    assert simulate(divided, stages=1, microbatches=2).in_flight == {0: 2}


@contract("PP-0-02")
def test_circle_of_computations():
    """Without messages too, ranks whose orders contradict each other are found."""
    circle = table("0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1")
    with pytest.raises(BadSchedule) as refusal:
        simulate(circle, stages=2, microbatches=2, communication=False)
    assert refusal.value.defect is Defect.CIRCULAR_WAIT


@contract("PP-0-03")
def test_messages_where_none_are_expected():
    """A table of computations alone has no messages in it."""
    with pytest.raises(BadSchedule) as refusal:
        simulate(table(*RIGHT), stages=2, microbatches=2, communication=False)
    assert refusal.value.defect is Defect.NEEDLESS_MESSAGE


@contract("PP-0-03")
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (4, 8), (4, 1), (16, 64)])
def test_figures_of_one_f_one_b(ranks, microbatches):
    """1F1B has the bubble and the memory of its paper."""
    run = simulate(one_f_one_b(ranks, microbatches), stages=ranks, microbatches=microbatches, communication=False)
    assert run.bubble_fraction == Fraction(ranks - 1, microbatches + ranks - 1)
    assert run.in_flight == {rank: min(ranks - rank, microbatches) for rank in range(ranks)}


@contract("PP-0-02")
@pytest.mark.parametrize("text", ["", "F0", "0F", "0F0x", "0f0", "0SEND0", "-1F0", "0UNSHARD0"])
def test_unreadable_action(text):
    """What is not stage, kind and micro-batch is no action, also with something after it."""
    with pytest.raises(BadSchedule) as refusal:
        parse(text)
    assert refusal.value.defect is Defect.UNREADABLE
