"""Checkpoints by interval: what a run resumes from, and that it is the run without them."""

from __future__ import annotations

from pathlib import Path

from hyper_parallel_tests.domains.resume.runs import EVERYTHING, PLAIN, Plan, begun, observed, ran, straight
from hyper_parallel_tests.domains.resume.tracks import Ran, assert_same_run
from hyper_parallel_tests.harness import World, contract, jobs

LAYOUT, CARDS = "fsdp", 2


def with_checkpoints(plan: Plan, folder: Path) -> Plan:
    """Every second step, by a configuration that names the checkpoint before what it must not miss."""
    return plan.also(
        "--callbacks=[checkpoint, best_metric, validation, logging]",
        f"--checkpoint.folder={folder}",
        "--checkpoint.interval=2",
    )


def interrupted(world: World, plan: Plan, steps: int) -> list[int]:
    """A run that ends early. Gives the steps that it has saved."""
    trainer = begun(world, plan, LAYOUT, steps=steps)
    return next(one for one in trainer.callbacks if one.name == "checkpoint").manager.steps()


def resumed(world: World, plan: Plan, step: int | None) -> Ran:
    """The run of a fresh trainer that is to resume from a step by itself."""
    trainer, seen = observed(world, plan, LAYOUT, stranger=True)
    assert trainer.resume() == step
    trainer.train()
    return seen(trainer)


@contract("RS-2-02")
def test_by_interval(engine, world, ledger, tmp_path):
    """A run that ended at step 5 resumes from step 4, and logs, validates and knows its best as if it had not ended."""
    expected = jobs.run(world, ran, with_checkpoints(EVERYTHING, tmp_path / "straight"), LAYOUT, cards=CARDS)
    plan = with_checkpoints(EVERYTHING, tmp_path / "interrupted")
    assert jobs.run(world, interrupted, plan, 5, cards=CARDS) == [[2, 4]] * CARDS
    found = jobs.run(world, resumed, plan, 4, cards=CARDS)
    for mine, theirs in zip(found, expected, strict=True):
        assert_same_run(mine, theirs.behind(4), ledger["exact"])


@contract("RS-2-02")
def test_nothing_to_resume(engine, world, tmp_path):
    """Without a checkpoint, a trainer resumes from nothing and trains from the start, with every step."""
    plan = with_checkpoints(PLAIN, tmp_path / "none")
    for mine in jobs.run(world, resumed, plan, None, cards=CARDS):
        assert [one["step"] for one in mine.log] == [1, 2, 3, 4, 5, 6]


@contract("RS-2-02")
def test_saves_change_nothing(engine, world, ledger, tmp_path):
    """A run with checkpoints is bit for bit the run without."""
    without = straight(world, EVERYTHING, LAYOUT)
    found = jobs.run(world, ran, with_checkpoints(EVERYTHING, tmp_path / "some"), LAYOUT, cards=CARDS)
    for mine, theirs in zip(found, without, strict=True):
        assert_same_run(mine, theirs, ledger["exact"])
