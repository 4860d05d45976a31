"""What a run leaves for others: the model alone, whole, in a dtype of their choice."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from hyper_parallel_tests.domains.resume.networks import network
from hyper_parallel_tests.domains.resume.runs import EVERYTHING, made, saved
from hyper_parallel_tests.harness import World, assert_equal, contract, jobs
from hyper_parallel_tests.harness.judging.comparison import full

LAYOUT, CARDS, STEPS = "fsdp", 2, 3
DTYPES = {"as_it_is": None, "bfloat16": torch.bfloat16}


def exported(world: World, checkpoint: Path, folder: Path, restart: bool) -> dict[str, Tensor]:
    """A run to its end, from its start or from a checkpoint, and its exports. Gives its parameters."""
    trainer = made(world, EVERYTHING, LAYOUT, stranger=restart)
    if restart:
        trainer.load_checkpoint(checkpoint)
    trainer.train()
    for name, dtype in DTYPES.items():
        trainer.export(folder / name, dtype=dtype)
    return {name: full(one) for name, one in trainer.model.named_parameters()}


def read_alone(world: World, folder: Path) -> dict[str, dict[str, Tensor]]:
    """The values of each export in a model on one card; it has the model's tensors, in its dtypes, and no others."""
    found = {}
    for name, dtype in DTYPES.items():
        saved = world.engine.read_checkpoint_metadata(folder / name).state_dict_metadata
        found[name] = network(5).to(dtype or torch.float32).state_dict()
        assert set(saved) == set(found[name])
        dtypes = {key: one.dtype for key, one in found[name].items()}
        assert {key: one.properties.dtype for key, one in saved.items()} == dtypes
        world.engine.load(found[name], checkpoint_id=folder / name)
    return found


@contract("RS-2-02")
def test_export(engine, world, tmp_path):
    """The export of a run that was resumed is that of one that was not: the model alone, for a single card."""
    checkpoint, straight, restarted = (tmp_path / name for name in ("checkpoint", "straight", "restarted"))
    [parameters, _] = jobs.run(world, exported, checkpoint, straight, False, cards=CARDS)
    jobs.run(world, saved, EVERYTHING, LAYOUT, checkpoint, STEPS, cards=CARDS)
    jobs.run(world, exported, checkpoint, restarted, True, cards=CARDS)
    expected, found = (jobs.run(world, read_alone, one, cards=1)[0] for one in (straight, restarted))
    for name, dtype in DTYPES.items():
        assert_equal(found[name], expected[name], what=f"the exports {name}")
        rounded = {key: one.to(dtype or torch.float32) for key, one in parameters.items()}
        assert_equal({key: found[name][key] for key in rounded}, rounded, what=f"exported parameters {name}")
