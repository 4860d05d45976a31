"""Layers divided by tensor parallelism whose parts are sharded."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.harness import World, assert_parity, contract, mean_over_ranks, train, train_baseline
from hyper_parallel_tests.interactions.communication import assert_as_undivided
from hyper_parallel_tests.interactions.decoders import batches, in_shards, laid_out, loss, optimizer, whole
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.decoder import Decoder
from hyper_parallel_tests.models.seeding import Batch

HERE = scenario("IX-02")


def model_and_rows(engine: Any, world: World) -> tuple[Decoder, list[Batch]]:
    """This rank's part of the decoder, and its rows: those of the ranks that it is divided with."""
    mesh = HERE.mesh(world)
    rows = [one.part(mesh.get_local_rank("dp"), HERE.dims["dp"]) for one in batches(world)]
    return laid_out(engine, world, mesh["tp"], mesh["dp"]), rows


@contract("IX-02")
def test_trains_as_a_single_card_does(engine, world, ledger):
    """Loss, norm, gradients and parameters of three steps are the single card's, those of norms on parts too."""
    model, rows = model_and_rows(engine, world)
    candidate = train(model, rows, loss, optimizer=optimizer, average=mean_over_ranks)
    baseline = train_baseline(whole(world), batches(world), loss, optimizer=optimizer)
    assert_parity(candidate, baseline, ledger["tp_fsdp_fp32"])


@contract("IX-02")
def test_shards_are_gathered_and_reduced_as_without_division(engine, world):
    """Over the ranks of the shards a step of divided layers starts the collectives that one of whole layers does."""
    (model, (rows, *_)), shards = model_and_rows(engine, world), HERE.mesh(world)["dp"]
    undivided = in_shards(engine, whole(world), shards)
    assert_as_undivided(lambda one: loss(one, rows).backward(), model, undivided, shards)


@contract("IX-02")
def test_life_cycle_is_closed(engine, world):
    """After a step each parameter is this rank's shard of its part, no hook is left and nothing has grown."""
    model, (rows, *_) = model_and_rows(engine, world)
    update = optimizer(model.parameters())
    assert_closed(lambda: loss(model, rows).backward(), update, model)
