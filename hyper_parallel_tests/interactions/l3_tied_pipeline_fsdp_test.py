"""Stages of a pipeline that are sharded, of which the first and the last have a copy of one weight each."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from hyper_parallel_tests.harness import World, assert_equal, assert_parity, contract, trace, train_baseline
from hyper_parallel_tests.interactions.decoder_stages import (
    MICRO_BATCHES,
    SHAPE,
    batches,
    loss,
    optimizer,
    piped,
    whole,
)
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.pipelines import Pipeline
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.decoder_layouts import lay_out
from hyper_parallel_tests.models.seeding import Batch

HERE = scenario("IX-22")
TIED = dataclasses.replace(SHAPE, tied=True)
# The output's weight is the embedding's.
SHARED, COPY = "embedding.weight", "output.weight"


class Setting:
    """This rank's stage of the tied decoder, and its rows; the last stage's copy has no values yet."""

    def __init__(self, engine: Any, world: World) -> None:
        self.mesh = HERE.mesh(world)
        model = whole(world, TIED)
        if self.mesh.get_local_rank("pp"):
            nn.init.constant_(model.output.weight, torch.nan)
        laid = lay_out(engine, model, self.mesh, micro_batches=MICRO_BATCHES)
        named = {SHARED if name == COPY else name: one for name, one in laid.model.named_parameters()}
        self.copy: nn.Parameter = named[SHARED]
        self.pipeline: Pipeline = piped(
            engine,
            self.mesh,
            laid,
            params=named,
            copies=() if laid.is_first else (SHARED,),
            shared_parameters=engine.SharedParameterInfo(self.copy, [0, laid.stages - 1]),
        )
        self.rows: list[Batch] = [laid.part(one) for one in batches(world, TIED)]


@contract("IX-22")
def test_trains_as_a_single_card_does(engine, world, ledger):
    """Loss, norm, gradients and parameters of three steps are the single card's; both copies are its one weight."""
    here = Setting(engine, world)
    candidate = here.pipeline.train(here.rows, optimizer=optimizer)
    baseline = train_baseline(whole(world, TIED), batches(world, TIED), loss, optimizer=optimizer)
    # The last stage's copy had no values yet when the start was recorded.
    start = {name: one for name, one in baseline.start.items() if name in candidate.start}
    assert_parity(
        dataclasses.replace(candidate, start=start), baseline.only(here.pipeline.params), ledger["pp_fsdp_fp32"]
    )


@contract("IX-22")
def test_copies_stay_equal(engine, world):
    """Shard by shard the copies have the same bits, with the first run and after three updates."""
    here = Setting(engine, world)
    update = optimizer(here.pipeline.model.parameters())
    for rows in here.rows:
        update.zero_grad()
        here.pipeline.run(rows)
        update.step()
        for what, own in (("copy", here.copy), ("gradient", here.copy.grad)):
            assert_equal(own.to_local().detach(), first_stages(engine, here.mesh, own), what=f"the {what}")


def first_stages(engine: Any, mesh: Any, own: Any) -> torch.Tensor:
    """The shard of the rank of the first stage that this rank's pipeline has; collective."""
    found = [torch.empty_like(own.to_local().detach()) for _ in range(HERE.dims["pp"])]
    engine.all_gather(found, own.to_local().detach().contiguous(), group=mesh.get_group("pp"))
    return found[0]


@contract("IX-22")
def test_shards_are_summed_once_and_last(engine, world):
    """A run exchanges shards of the shared gradient once, after the stage's gradients were reduced."""
    here = Setting(engine, world)
    here.pipeline.run(here.rows[0])
    with trace.collectives() as sent:
        here.pipeline.run(here.rows[0])
    ops = [one.op for one in sent if one.op in {"reduce_scatter", "send"}]
    *reduced, exchanged = ops[ops.index("reduce_scatter") :]
    assert exchanged == "send"
    assert set(reduced) == {"reduce_scatter"}
    assert sent.of("send")[-1].bytes == here.copy.to_local().numel() * torch.float32.itemsize


@contract("IX-22")
def test_life_cycle_is_closed(engine, world):
    """After a step each parameter is this rank's shard, no message is under way and nothing has grown."""
    here = Setting(engine, world)
    assert_closed(
        lambda: here.pipeline.run(here.rows[0]), optimizer(here.pipeline.model.parameters()), here.pipeline.model
    )
