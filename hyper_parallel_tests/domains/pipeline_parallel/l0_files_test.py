"""Schedules from CSV files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyper_parallel_tests.domains.pipeline_parallel.plans import PLANS, one_f_one_b
from hyper_parallel_tests.domains.pipeline_parallel.simulator import assert_runs, parse
from hyper_parallel_tests.harness import contract

# Two stages on two ranks with two micro-batches: what the tables below vary.
GPIPE = "0F0,0F1,,0B0,0B1\n,1F0,1F1,1B0,1B1\n"


def written(folder: Path, text: str) -> Path:
    """A file with that text."""
    path = folder / "schedule.csv"
    path.write_text(text)
    return path


@contract("PP-0-02")
@pytest.mark.parametrize("plan", [one for one in PLANS if one.schedule != "1F1B"], ids=str)
def test_table_survives_a_file(engine, artifacts, plan):
    """A table that is written and read again, with its messages, is the same."""
    table = engine.schedule_table(plan.schedule, 4, 8, stages_per_rank=plan.stages_per_rank)
    path = artifacts / "schedule.csv"
    engine.dump_schedule_csv(table, path)
    stages = 4 * plan.stages_per_rank
    assert engine.load_schedule_csv(path, stages, 8, format="compute_comms") == table


@contract("PP-0-02")
def test_file_has_a_line_for_each_rank(engine, artifacts):
    """The file is what people write by hand: one line a rank, actions with commas between them."""
    path = artifacts / "schedule.csv"
    engine.dump_schedule_csv(one_f_one_b(2, 2), path)
    assert path.read_text().splitlines() == ["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"]


@contract("PP-0-02", "PP-0-03")
@pytest.mark.parametrize(
    ("stages", "text"),
    [
        (2, GPIPE),
        (2, "0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1I0,1F1,1B1,1W0\n"),
        (3, "0F0,0F1,1F0,1F1,1B0,0B0,1B1,0B1\n2F0,2B0,2F1,2B1\n"),
        (3, "1F0,1F1,1B0,1B1\n0F0,2F0,0F1,2B0,0B0,2F1,2B1,0B1\n"),
        (4, "0F0,3F0,3B0,0F1,3F1,3B1,0B0,0B1\n1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n"),
    ],
    ids=["idle_slots", "divided_backward", "two_stages_on_one", "out_and_back", "a_v"],
)
def test_custom_schedule_gets_its_messages(engine, artifacts, stages, text):
    """Any order of computations that can run is lowered to a table that runs, on any assignment of stages to ranks."""
    table = engine.load_schedule_csv(written(artifacts, text), stages, 2)
    assert_runs(table, stages=stages, microbatches=2)
    for rank, line in enumerate(text.splitlines()):
        computed = [one for one in table[rank] if "_" not in parse(one).kind]
        assert computed == [cell for cell in line.split(",") if cell]


@contract("PP-0-02")
@pytest.mark.parametrize(
    "text",
    [
        "0F0,0F1,0B0\n1F0,1F1,1B0,1B1\n",
        "0F0,0B0,0B1\n1F0,1F1,1B0,1B1\n",
        "0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1\n",
        "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1W1,1I1\n",
        "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1I1\n",
        "0F0,0F1,0B0\n1F0,1F1,1B0,1B1,0B1\n",
        "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1X1\n",
        "0F0,0F1,0B0,0B1,2F0\n1F0,1F1,1B0,1B1\n",
        "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n",
        "0F0,0F1,0SEND_F0,0B0,0B1\n1F0,1F1,1B0,1B1\n",
        "0F0,0F1,0B0,0B1,0B0\n1F0,1F1,1B0,1B1\n",
        "0F0,0F2,0B0,0B2\n1F0,1F2,1B0,1B2\n",
        "0F0,0F1,0B0,0B1x\n1F0,1F1,1B0,1B1\n",
    ],
    ids=[
        "missing_backward",
        "missing_forward",
        "backward_first",
        "weight_gradient_first",
        "missing_weight_gradient",
        "stage_on_two_ranks",
        "unknown_kind",
        "unknown_stage",
        "circular_wait",
        "message_among_computations",
        "action_twice",
        "micro_batch_that_does_not_exist",
        "trailing_text",
    ],
)
def test_wrong_schedule_is_refused(engine, artifacts, text):
    """A file whose table cannot run, or does not compute each micro-batch once, is an error before anything runs."""
    with pytest.raises(ValueError, match=r"schedule\.csv"):
        engine.load_schedule_csv(written(artifacts, text), 2, 2)


@contract("PP-0-03")
@pytest.mark.parametrize(
    "text",
    [
        "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n",
        "0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
        "0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
        "0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
    ],
    ids=["missing_receive", "missing_send", "sent_before_it_is_computed", "circular_wait"],
)
def test_wrong_messages_are_refused(engine, artifacts, text):
    """A file with sends and receives that do not match is an error when it is loaded, not a hang in the first step."""
    with pytest.raises(ValueError, match=r"schedule\.csv"):
        engine.load_schedule_csv(written(artifacts, text), 2, 1, format="compute_comms")
