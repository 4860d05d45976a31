"""The trainer around all of it: callbacks, checkpoints by interval, early ends, and what is exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.domains.resume.networks import network
from hyper_parallel_tests.domains.resume.runs import (
    EVERYTHING,
    PLAIN,
    Plan,
    Ran,
    assert_same_run,
    begun,
    continued,
    made,
    observed,
    ran,
    saved,
)
from hyper_parallel_tests.harness import World, assert_equal, contract, jobs

LAYOUT, CARDS = "fsdp", 2
STEPS = 3


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


def exported(world: World, plan: Plan, folder: Path, export: Path, restart: bool, dtype: Any) -> None:
    """A run to its end, from its start or from a checkpoint, and its export."""
    trainer = made(world, plan, LAYOUT, stranger=restart)
    if restart:
        trainer.load_checkpoint(folder)
    trainer.train()
    trainer.export(export, dtype=dtype)


def read_alone(world: World, export: Path, dtype: Any) -> tuple[set[str], dict[str, Tensor]]:
    """What an export has, and its values in a model on one card."""
    keys = set(world.engine.read_checkpoint_metadata(export).state_dict_metadata)
    state = network(5).to(dtype).state_dict()
    world.engine.load(state, checkpoint_id=export)
    return keys, state


@contract("RS-2-02")
def test_by_interval(engine, world, ledger, tmp_path):
    """A run that ended at step 5 resumes from step 4, and logs, validates and knows its best as if it had not ended."""
    straight = jobs.run(world, ran, with_checkpoints(EVERYTHING, tmp_path / "straight"), LAYOUT, cards=CARDS)
    plan = with_checkpoints(EVERYTHING, tmp_path / "interrupted")
    assert jobs.run(world, interrupted, plan, 5, cards=CARDS) == [[2, 4]] * CARDS
    found = jobs.run(world, resumed, plan, 4, cards=CARDS)
    for mine, theirs in zip(found, straight, strict=True):
        assert_same_run(mine, theirs.behind(4), ledger["exact"])


@contract("RS-2-02")
def test_nothing_to_resume(engine, world, ledger, tmp_path):
    """Without a checkpoint, a trainer resumes from nothing and trains from the start."""
    plan = with_checkpoints(PLAIN, tmp_path / "none")
    for mine in jobs.run(world, resumed, plan, None, cards=CARDS):
        assert len(mine.track.steps) == 6


@contract("RS-2-02")
def test_saves_change_nothing(engine, world, ledger, tmp_path):
    """A run with checkpoints is bit for bit the run without."""
    without = jobs.run(world, ran, EVERYTHING, LAYOUT, cards=CARDS)
    found = jobs.run(world, ran, with_checkpoints(EVERYTHING, tmp_path / "some"), LAYOUT, cards=CARDS)
    assert_same_run(found[0], without[0], ledger["exact"])


@contract("RS-2-02")
@pytest.mark.parametrize("at", [1, 2, 3], ids=["before", "just_before", "at_its_end"])
def test_early_end(engine, world, artifacts, at):
    """A run without progress ends after two validations without a better one, wherever it was interrupted."""
    plan = PLAIN.also("--optimizer.lr=0", "--callbacks=[validation, best_metric]", "--best_metric.patience=2")
    folder = artifacts / "checkpoint"
    jobs.run(world, saved, plan, LAYOUT, folder, at, cards=CARDS)
    found = jobs.run(world, continued, plan, LAYOUT, folder, cards=CARDS)[0]
    assert len(found.track.steps) == STEPS - at
    assert found.best["best_step"] == 1
    assert found.best["without_better"] == 2


@contract("RS-2-02")
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["as_it_is", "bfloat16"])
def test_export(engine, world, artifacts, dtype):
    """The export of a run that was resumed is that of one that was not: the model alone, for a single card."""
    folder, straight, restarted = (artifacts / name for name in ("checkpoint", "straight", "restarted"))
    jobs.run(world, exported, EVERYTHING, folder, straight, False, dtype, cards=CARDS)
    jobs.run(world, saved, EVERYTHING, LAYOUT, folder, STEPS, cards=CARDS)
    jobs.run(world, exported, EVERYTHING, folder, restarted, True, dtype, cards=CARDS)
    (keys, found), (_, expected) = (
        jobs.run(world, read_alone, one, dtype or torch.float32, cards=1)[0] for one in (restarted, straight)
    )
    assert keys == set(network(0).state_dict())
    assert_equal(found, expected, what="exports")
    final = jobs.run(world, ran, EVERYTHING, LAYOUT, cards=CARDS)[0].track.steps[-1].params
    rounded = {name: one.to(dtype or torch.float32) for name, one in final.items()}
    assert_equal(found, rounded, what="exported parameters")
