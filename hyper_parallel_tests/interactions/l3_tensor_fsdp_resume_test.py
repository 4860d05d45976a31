"""State of layers that are divided by tensor parallelism and sharded, saved and loaded into a new model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from hyper_parallel_tests.harness import World, assert_equal, assert_parity, contract, mean_over_ranks, train
from hyper_parallel_tests.harness import train_baseline as baseline_of
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.interactions.decoders import batches, laid_out, loss, optimizer, whole
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.resumption import load, saved_between
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.decoder import Decoder
from hyper_parallel_tests.models.seeding import Batch

HERE = scenario("IX-03")
STEPS = 4
# Of a start that has nothing to do with the one that was saved.
OTHER_SEED = 7


def fresh(engine: Any, world: World, seed: int = 0) -> tuple[Decoder, torch.optim.Optimizer, list[Batch]]:
    mesh = HERE.mesh(world)
    model = laid_out(engine, world, mesh["tp"], mesh["dp"], seed)
    rows = [one.part(mesh.get_local_rank("dp"), HERE.dims["dp"]) for one in batches(world, STEPS)]
    return model, optimizer(model.parameters()), rows


def trained(model: nn.Module, update: torch.optim.Optimizer, rows: Sequence[Batch]) -> Track:
    return train(model, rows, loss, optimizer=update, average=mean_over_ranks)


@contract("IX-03")
def test_goes_on_where_it_was(engine, world, ledger, artifacts):
    """A new model from the checkpoint repeats, bit by bit, the run that went on, which is the single card's."""
    model, update, rows = fresh(engine, world)
    run, second_half = saved_between(engine, model, update, rows, trained, artifacts / "checkpoint")
    baseline = baseline_of(whole(world), batches(world, STEPS), loss, optimizer=optimizer)
    assert_parity(run, baseline, ledger["tp_fsdp_fp32"])
    model, update, rows = fresh(engine, world, OTHER_SEED)
    load(engine, model, update, artifacts / "checkpoint")
    resumed = trained(model, update, rows[STEPS // 2 :])
    assert_parity(resumed, second_half, ledger["exact"], own_because="the run that goes on is the reference")


@contract("IX-03")
def test_load_keeps_parameters_and_closes(engine, world, artifacts):
    """Loading leaves parameters the objects they are, laid out as they were, and the steps after it are closed."""
    model, update, rows = fresh(engine, world)
    saved_between(engine, model, update, rows, trained, artifacts / "checkpoint")
    model, update, rows = fresh(engine, world, OTHER_SEED)
    before = {name: (id(one), one.placements) for name, one in model.named_parameters()}
    load(engine, model, update, artifacts / "checkpoint")
    assert {name: (id(one), one.placements) for name, one in model.named_parameters()} == before
    moments = {name: update.state[one]["exp_avg"] for name, one in model.named_parameters()}
    assert {name: one.placements for name, one in moments.items()} == {
        name: placements for name, (_, placements) in before.items()
    }
    assert_equal(
        {name: update.state[one]["step"] for name, one in model.named_parameters()},
        dict.fromkeys(before, torch.tensor(float(STEPS // 2))),
        what="steps taken",
    )
    assert_closed(lambda: loss(model, rows[0]).backward(), update, model)
