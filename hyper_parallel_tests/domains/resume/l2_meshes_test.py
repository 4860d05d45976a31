"""Restarts on another mesh, or in stages: by the ledger what the run does that goes on where it was."""

from __future__ import annotations

from typing import Any

import pytest

from hyper_parallel_tests.domains.resume.runs import PLAIN, Ran, cards_of, continued, joined, ran, saved
from hyper_parallel_tests.harness import World, assert_equal, assert_parity, contract, jobs

STEPS = 3
WAYS = [
    ("fsdp", "fsdp_tp"),
    ("fsdp_tp", "tp"),
    ("fsdp_tp", "fsdp_4"),
    ("tp", "one"),
    ("one", "fsdp_4"),
    ("pp", "fsdp"),
    ("fsdp", "pp"),
]


def elsewhere(world: World, before: str, after: str, folder: Any, micro_batches: int) -> Ran:
    jobs.run(world, saved, PLAIN, before, folder, STEPS, micro_batches, cards=cards_of(before))
    return joined(jobs.run(world, continued, PLAIN, after, folder, cards=cards_of(after)))


def assert_goes_on(found: Ran, expected: Ran, tolerance: Any) -> None:
    """Loss, gradients and parameters by the ledger, schedule and place in the data exactly."""
    assert_parity(found.track, expected.track, tolerance, own_because="the run that goes on is the reference")
    exactly = [{key: one[key] for key in ("lr", "scale", "place")} for one in found.facts]
    assert_equal(exactly, [{key: one[key] for key in exactly[0]} for one in expected.facts], what="facts")


@contract("RS-2-01")
@pytest.mark.parametrize(("before", "after"), [("fsdp", "fsdp_tp"), ("tp", "one")], ids=["fsdp-fsdp_tp", "tp-one"])
def test_open_window(engine, world, ledger, artifacts, before, after):
    """The gradients and the loss of a window that is open go over to other ranks too."""
    expected = joined(jobs.run(world, ran, PLAIN, before, cards=cards_of(before))).behind(STEPS)
    found = elsewhere(world, before, after, artifacts / "checkpoint", micro_batches=1)
    assert_goes_on(found, expected, ledger["tp_fsdp_fp32"])


@contract("RS-2-01")
@pytest.mark.parametrize(("before", "after"), WAYS, ids=[f"{before}-{after}" for before, after in WAYS])
def test_another_mesh(engine, world, ledger, artifacts, before, after):
    """Parameters, optimizer, schedule and place in the data go over to ranks that are others, and lie otherwise."""
    expected = joined(jobs.run(world, ran, PLAIN, before, cards=cards_of(before))).behind(STEPS)
    found = elsewhere(world, before, after, artifacts / "checkpoint", micro_batches=0)
    assert_goes_on(found, expected, ledger["tp_fsdp_fp32"])
