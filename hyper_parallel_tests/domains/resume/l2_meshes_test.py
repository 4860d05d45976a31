"""Restarts on another mesh, or in stages: by the ledger what the run does that goes on where it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hyper_parallel_tests.domains.resume.runs import EVERYTHING, Plan, cards_of, continued, saved, straight
from hyper_parallel_tests.domains.resume.tracks import Ran, joined
from hyper_parallel_tests.harness import World, assert_close, assert_equal, assert_parity, contract, jobs

STEPS = 3

# All but random numbers, which are others on another mesh. Stages neither validate nor scale their loss, and run a
# forward more than others.
ANYWHERE = replace(
    EVERYTHING.also("--training.gradient_accumulation_steps=2", "--loss_scale.growth_interval=4"),
    dropout=0.0,
    noisy=False,
)
IN_STAGES = replace(ANYWHERE.also("--loss_scale.enabled=false", "--callbacks=[logging]"), frozen="", grows=False)
WAYS = [
    ("fsdp", "tp"),
    ("fsdp", "fsdp_tp"),
    ("fsdp_tp", "tp"),
    ("fsdp_tp", "fsdp_4"),
    ("tp", "one"),
    ("one", "fsdp_4"),
    ("pp", "fsdp"),
    ("fsdp", "pp"),
]


def assert_goes_on(
    world: World, plan: Plan, before: str, after: str, folder: Any, tolerance: Any, micro_batches: int = 0
) -> None:
    """Loss, gradients, parameters, records and best metric by the ledger, schedule, scale and place exactly."""
    expected = joined(straight(world, plan, before)).behind(STEPS)
    jobs.run(world, saved, plan, before, folder, STEPS, micro_batches, cards=cards_of(before))
    found = joined(jobs.run(world, continued, plan, after, folder, cards=cards_of(after)))
    assert_parity(found.track, expected.track, tolerance, own_because="the run that goes on is the reference")
    exactly = [{key: one[key] for key in ("lr", "scale", "place")} for one in found.facts]
    assert_equal(exactly, [{key: one[key] for key in exactly[0]} for one in expected.facts], what="facts")
    assert_close(told(found), told(expected), tolerance, what="records and best metric")


def told(run: Ran) -> dict[str, Any]:
    """What the callbacks say of a run."""
    records = {f"behind step {one['step']}": [one["loss"], one["grad_norm"] or 0.0, one["epoch"]] for one in run.log}
    return {**records, **{f"metric {key}": value for key, value in run.best.items()}}


@contract("RS-2-01")
@pytest.mark.parametrize(("before", "after"), [("tp", "one"), ("fsdp", "fsdp_tp")], ids=["tp-one", "fsdp-fsdp_tp"])
def test_open_window(engine, world, ledger, artifacts, before, after):
    """The gradients and the loss of a window that is open go over to other ranks too."""
    assert_goes_on(world, ANYWHERE, before, after, artifacts / "checkpoint", ledger["tp_fsdp_fp32"], micro_batches=1)


@contract("RS-2-01")
@pytest.mark.parametrize(("before", "after"), WAYS, ids=[f"{before}-{after}" for before, after in WAYS])
def test_another_mesh(engine, world, ledger, artifacts, before, after):
    """All that steps depend on but random numbers goes over to ranks that are others, or lie otherwise."""
    plan = IN_STAGES if "pp" in (before, after) else ANYWHERE
    assert_goes_on(world, plan, before, after, artifacts / "checkpoint", ledger["tp_fsdp_fp32"])
