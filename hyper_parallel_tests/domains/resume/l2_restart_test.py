"""Train, save, stop the processes, start new ones, load, train: bit for bit the run that was never stopped."""

from __future__ import annotations

from typing import Any

import pytest

from hyper_parallel_tests.domains.resume.runs import EVERYTHING, PLAIN, Plan, cards_of, continued, saved, straight
from hyper_parallel_tests.domains.resume.tracks import Ran, assert_same_run
from hyper_parallel_tests.harness import World, assert_equal, contract, jobs

STEPS = 3
SGD = PLAIN.also("--optimizer.name=sgd", "--optimizer.momentum=0.9")


def restarted(world: World, plan: Plan, layout: str, folder: Any) -> tuple[list[Ran], list[Ran]]:
    """On each rank what a run does behind a restart, and what it does there without."""
    cards = cards_of(layout)
    expected = [one.behind(STEPS) for one in straight(world, plan, layout)]
    jobs.run(world, saved, plan, layout, folder, STEPS, cards=cards)
    return jobs.run(world, continued, plan, layout, folder, cards=cards), expected


@contract("RS-2-01")
@pytest.mark.parametrize("layout", ["one", "fsdp", "tp", "fsdp_tp"])
def test_everything(engine, world, ledger, artifacts, layout):
    """With dropout, noise from every generator, warm-up, loss scale, changed settings and a frozen parameter."""
    found, expected = restarted(world, EVERYTHING, layout, artifacts / "checkpoint")
    for mine, theirs in zip(found, expected, strict=True):
        assert_same_run(mine, theirs, ledger["exact"])


@contract("RS-2-01")
@pytest.mark.parametrize("layout", ["fsdp", "tp"])
def test_momentum(engine, world, ledger, artifacts, layout):
    """With SGD, whose momentum is all that it has."""
    found, expected = restarted(world, SGD, layout, artifacts / "checkpoint")
    assert_same_run(found[0], expected[0], ledger["exact"])


@contract("RS-2-01")
def test_ranks_draw_their_own(engine, world, artifacts):
    """Behind a restart ranks with rows of their own read their own, and all of a step's rows are read."""
    found, expected = restarted(world, EVERYTHING, "fsdp", artifacts / "checkpoint")
    first, second = ([one.facts[0]["rows"] for one in those] for those in (found, expected))
    assert_equal(first, second, what="rows")
    assert set(first[0].tolist()).isdisjoint(first[1].tolist())
