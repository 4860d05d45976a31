"""What callbacks are told and when, what they keep over a restart, and what those of the configuration do."""

from __future__ import annotations

import math
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hyper_parallel_tests.domains.resume.runs import PLAIN, Plan, made
from hyper_parallel_tests.harness import assert_equal, contract

EVENTS = (
    "train_begin",
    "train_end",
    "substep_end",
    "pre_optimizer_step",
    "step_end",
    "log",
    "evaluate",
    "save",
    "load",
)


@pytest.fixture
def folder(world):
    """A folder that all ranks see, empty at first."""
    name = [tempfile.mkdtemp() if world.rank == 0 else None]
    dist.broadcast_object_list(name)
    yield Path(name[0])
    if world.rank == 0:
        # A rank that has failed is no reason to wait here, and may leave files.
        shutil.rmtree(name[0], ignore_errors=True)


def with_checkpoints(folder: Path, *settings: str) -> Plan:
    """A plan whose every second step is saved."""
    return PLAIN.also(f"--checkpoint.folder={folder}", "--checkpoint.interval=2", *settings)


def listener(engine: Any, told: list[tuple[str, int, int, str]], trainer: Any) -> Any:
    """A callback that writes down of each event its name, the step, the micro-batch, and the folder that it names."""

    def heard(event: str, state: Any, **what: Any) -> None:
        told.append((event, state.global_step, state.micro_step, getattr(what.get("checkpoint_dir"), "name", "")))

    methods = {f"on_{event}": staticmethod(partial(heard, event)) for event in EVENTS}
    return type("Listener", (engine.Callback,), {"name": "listener", **methods})(trainer)


def keeper(engine: Any, kept: Any, trainer: Any) -> Any:
    """A callback with a state: numbers, text and a tensor."""

    class Keeper(engine.Callback):
        name = "keeper"
        loads = 0

        def state_dict(self) -> dict[str, Any]:
            return dict(kept)

        def load_state_dict(self, state_dict: Any) -> None:
            self.loads += 1
            kept.clear()
            kept.update(state_dict)

    return Keeper(trainer)


def named(trainer: Any, name: str) -> Any:
    return next(one for one in trainer.callbacks if one.name == name)


@contract("RS-2-02")
def test_events(engine, world, folder):
    """Callbacks are told of all that happens, in order, those of the user before those of the configuration."""
    told: list[tuple[str, int, int, str]] = []
    plan = with_checkpoints(folder / "steps", "--callbacks=[logging, validation, checkpoint]", "--logging.interval=2")
    trainer = made(world, plan, "fsdp", more=(partial(listener, engine, told),))
    trainer.train(steps=2)
    trainer.save_checkpoint(folder / "whole")
    trainer.load_checkpoint(folder / "whole")
    trainer.resume()
    first = [("substep_end", 0, 1, ""), ("substep_end", 0, 2, ""), ("pre_optimizer_step", 0, 2, "")]
    second = [("substep_end", 1, 1, ""), ("substep_end", 1, 2, ""), ("pre_optimizer_step", 1, 2, "")]
    assert told == [
        ("train_begin", 0, 0, ""),
        *first,
        ("step_end", 1, 0, ""),
        ("evaluate", 1, 0, ""),
        *second,
        ("step_end", 2, 0, ""),
        ("log", 2, 0, ""),
        ("evaluate", 2, 0, ""),
        ("save", 2, 0, "step-2"),
        ("train_end", 2, 0, ""),
        ("save", 2, 0, "whole"),
        ("load", 2, 0, "whole"),
        ("load", 2, 0, "step-2"),
    ]


@contract("RS-2-02")
def test_state_of_a_callback(engine, world, folder):
    """A callback's numbers, text and tensors come back to the one of its name; one that is new begins with its own."""
    kept = {"count": 3, "name": "one", "values": torch.arange(4.0)}
    trainer = made(world, PLAIN, "fsdp", more=(partial(keeper, engine, dict(kept)),))
    trainer.save_checkpoint(folder / "with")
    found = {"count": 0, "name": "", "values": torch.zeros(4)}
    fresh = made(world, PLAIN, "fsdp", more=(partial(keeper, engine, found),))
    fresh.load_checkpoint(folder / "with")
    assert_equal(found.pop("values"), kept.pop("values"))
    assert found == kept
    made(world, PLAIN, "fsdp").save_checkpoint(folder / "without")
    new = made(world, PLAIN, "fsdp", more=(partial(keeper, engine, {"count": 5}),))
    new.load_checkpoint(folder / "without")
    assert (named(new, "keeper").loads, named(new, "keeper").state_dict()) == (0, {"count": 5})


@contract("RS-2-02")
@pytest.mark.parametrize(("keep", "left"), [(0, [2, 4, 6]), (1, [6])], ids=["all", "last"])
def test_kept_checkpoints(engine, world, folder, keep, left):
    """As many checkpoints are kept as the configuration says, and when training has ended others may save."""
    plan = with_checkpoints(folder / "steps", "--callbacks=[checkpoint]", f"--checkpoint.keep_last={keep}")
    trainer = made(world, plan, "fsdp")
    for _ in range(2):
        trainer.train(steps=3)
    assert named(trainer, "checkpoint").manager.steps() == left
    with engine.CheckpointManager(folder / "steps") as other:
        try:
            assert other.save(7, {"step": 7})
        except engine.CheckpointError as error:
            pytest.fail(f"nobody else may save: {error}")


BETTER = {
    "min": ([3.0, 1.0, 1.0, math.nan, 2.0, 0.5, 0.75], [3.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5], [1, 2, 2, 2, 2, 6, 6]),
    "max": ([3.0, 4.0, 4.0, math.nan, 2.0, 4.5, 4.25], [3.0, 4.0, 4.0, 4.0, 4.0, 4.5, 4.5], [1, 2, 2, 2, 2, 6, 6]),
}


@contract("RS-2-02")
@pytest.mark.parametrize("mode", BETTER)
def test_best_metric(engine, world, mode):
    """The best value is the first of the smallest, or largest; what is no number is never better."""
    values, bests, steps = BETTER[mode]
    plan = PLAIN.also("--callbacks=[validation, best_metric]", f"--best_metric.mode={mode}", "--best_metric.patience=4")
    trainer = made(world, plan, "fsdp")
    found = []
    for trainer.state.global_step, value in enumerate(values, start=1):
        trainer.tell("on_evaluate", metrics={"loss": value})
        found.append(dict(named(trainer, "best_metric").state_dict()))
    worse = [0, 0, 1, 2, 3, 0, 1]
    keys = ("best", "best_step", "without_better")
    assert found == [dict(zip(keys, one, strict=True)) for one in zip(bests, steps, worse, strict=True)]
    assert not trainer.state.should_stop
    for trainer.state.global_step in (8, 9, 10):
        trainer.tell("on_evaluate", metrics={"loss": math.nan})
    assert trainer.state.should_stop


@contract("RS-2-02")
def test_metric_that_nobody_finds(engine, world):
    """A best metric that no validation finds is an error with the path of its name."""
    plan = PLAIN.also("--callbacks=[validation, best_metric]", "--best_metric.name=accuracy")
    with pytest.raises(ValueError, match=r"^best_metric\.name: .*accuracy"):
        made(world, plan, "fsdp").train(steps=1)


@contract("RS-2-02")
def test_resume_without_checkpoints(engine, world):
    """A trainer without the callback for checkpoints has nowhere to resume from, and says so."""
    with pytest.raises(ValueError, match="checkpoint"):
        made(world, PLAIN, "fsdp").resume()
