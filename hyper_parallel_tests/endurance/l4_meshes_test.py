"""One run in three launches on other meshes each: its curve is that of a single card."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.endurance.meshes import LAYOUTS, Found, batches, launch, optimizer, whole, whole_loss
from hyper_parallel_tests.harness import World, assert_close, contract, jobs, train_baseline

# Few enough that rounding alone stays within the ledger: what training makes of it grows tenfold in thirty steps.
STEPS = 18
# Layouts of the launches, and the row of the ledger.
WAYS = {
    "fewer_and_more_cards": (("fsdp_4", "fsdp_2", "fsdp_4"), "fsdp_1d_fp32"),
    "divided_layers_between": (("fsdp_2", "fsdp_tp", "fsdp_2"), "tp_fsdp_fp32"),
    "more_and_fewer_stages": (("pp_2", "pp_4", "pp_2"), "pp_fsdp_fp32"),
}


def launched(world: World, layouts: tuple[str, ...], folder: Path) -> list[list[Found]]:
    """What each launch came to on each of its ranks; each goes on from the checkpoint of the one before."""
    found, before = [], None
    for place, layout in enumerate(layouts):
        part = range(STEPS * place // len(layouts), STEPS * (place + 1) // len(layouts))
        after = folder / f"step-{part.stop}"
        cards = math.prod(LAYOUTS[layout].values())
        found.append(jobs.run(world, launch, layout, part, before, after, cards=cards))
        before = after
    return found


def of_all_stages(ranks: list[Found]) -> dict[int, dict[str, dict[str, Tensor]]]:
    """Gradients and parameters by step, of which each rank has its stage's."""
    return {
        step: {what: {name: one for rank in ranks for name, one in rank.tensors[step][what].items()} for what in parts}
        for step, parts in ranks[0].tensors.items()
    }


@contract("EN-03")
@pytest.mark.watchdog(180)
@pytest.mark.parametrize(("layouts", "row"), WAYS.values(), ids=WAYS)
def test_curve_goes_on(engine, world, ledger, tmp_path, layouts, row):
    """Losses of all steps, gradients and parameters at both ends of each launch are those of one card."""
    baseline = train_baseline(whole(world), batches(world, range(STEPS)), whole_loss, optimizer=optimizer)
    launches = launched(world, layouts, tmp_path)
    losses = torch.cat([ranks[0].losses for ranks in launches])
    assert_close(losses, torch.tensor([one.loss for one in baseline.steps]), ledger[row], what="the curve")
    for number, ranks in enumerate(launches, 1):
        for step, found in of_all_stages(ranks).items():
            expected = {"gradient": baseline.steps[step].grads, "parameter": baseline.steps[step].params}
            assert_close(found, expected, ledger[row], what=f"launch {number}, step {step}")
