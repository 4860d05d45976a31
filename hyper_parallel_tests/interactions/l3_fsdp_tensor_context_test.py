"""Attention whose heads and sequence are divided, and whose parameters are sharded over ranks of rows and sequence."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hyper_parallel_tests.harness import World, assert_parity, contract, mean_over_ranks, train, train_baseline
from hyper_parallel_tests.interactions.attention import (
    Layers,
    batches,
    each_style,
    each_way,
    loss,
    optimizer,
    part,
    whole,
    with_divided_heads,
    with_divided_sequence,
)
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.interactions.shards import by_layer
from hyper_parallel_tests.models.seeding import Batch

HERE = scenario("IX-14")


class Setting:
    """The layers, divided and sharded, and this rank's tokens of its rows."""

    def __init__(self, engine: Any, world: World, style: str, asynchronous: bool) -> None:
        mesh = HERE.mesh(world)
        place = mesh.get_local_rank("cp")
        model = with_divided_heads(engine, mesh["tp"], whole(world))
        with_divided_sequence(engine, mesh["cp"], model, style, asynchronous=asynchronous)
        shards = engine.flatten_mesh(mesh[("fsdp", "cp")], "shards")
        self.model: Layers = by_layer(engine, model, shards)
        own = [one.part(mesh.get_local_rank("fsdp"), HERE.dims["fsdp"]) for one in batches(world)]
        self.given: list[Batch] = [part(one, place, HERE.dims["cp"]) for one in own]
        self.place = place

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return loss(model, batch, self.place, HERE.dims["cp"])


@contract("IX-14")
@each_style
@each_way
def test_trains_as_a_single_card_does(engine, world, ledger, style, asynchronous):
    """Loss, norm, gradients and parameters of three steps are the single card's."""
    here = Setting(engine, world, style, asynchronous)
    candidate = train(here.model, here.given, here.loss, optimizer=optimizer, average=mean_over_ranks)
    baseline = train_baseline(whole(world), batches(world), loss, optimizer=optimizer)
    assert_parity(candidate, baseline, ledger["cp_tp_fp32"])


@contract("IX-14")
@each_style
def test_life_cycle_is_closed(engine, world, style):
    """After a step no transfer is under way, no parameter is gathered, no hook is left and nothing has grown."""
    here = Setting(engine, world, style, asynchronous=True)
    assert_closed(
        lambda: here.loss(here.model, here.given[0]).backward(), optimizer(here.model.parameters()), here.model
    )
