"""Sharded parameters that are saved again and again, for many steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from hyper_parallel_tests.endurance.combinations import fsdp, whole
from hyper_parallel_tests.endurance.long_run import assert_steady, long_run
from hyper_parallel_tests.harness import contract

# Steps between checkpoints, and how many of these stay.
INTERVAL, KEPT = 2, 2


@contract("EN-01")
@pytest.mark.steps(100, nightly=2000, weekly=20000, seconds=0.5)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["in_turn", "beside_training"])
def test_many_steps(engine, world, ledger, artifacts, tmp_path, steps, asynchronous):
    """Each step is finite, the losses are the single card's, and nothing grows, of the process or of its folder."""
    folder, training, entries = one_folder(tmp_path), fsdp(engine, world), []
    with engine.CheckpointManager(folder, interval=INTERVAL, keep_latest_k=KEPT, asynchronous=asynchronous) as manager:

        def save(step: int) -> None:
            if step % INTERVAL == 0:
                manager.wait()
                # One rank looks, and before it takes part in the next save, which changes the folder.
                entries.append(len([*folder.rglob("*")]) if world.rank == 0 else 0)
                manager.save(step, {"model": engine.get_model_state_dict(training.model)})

        run = long_run(world, training, whole, steps, artifacts, "FSDP with checkpoints", after=save)
        manager.wait()
        assert manager.steps() == [*range(0, steps, INTERVAL)][-KEPT:]
    assert_steady(run, ledger, "endurance_losses")
    assert entries[KEPT:] == entries[KEPT : KEPT + 1] * len(entries[KEPT:]), "files stay that are no checkpoint's"


def one_folder(mine: Path) -> Path:
    """The folder of the first rank, on all of them."""
    folder = [mine]
    dist.broadcast_object_list(folder)
    return folder[0]
