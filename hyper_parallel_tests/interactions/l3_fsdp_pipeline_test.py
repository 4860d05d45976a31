"""A pipeline of two stages, each sharded over two cards, against data parallelism of the whole on four."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hyper_parallel_tests.harness import (
    assert_close,
    assert_parity,
    contract,
    in_clean_process,
    mean_over_ranks,
    train_baseline,
)
from hyper_parallel_tests.interactions.decoder_stages import batches, loss, optimizer, pipeline_and_rows, whole
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.decoder import Decoder
from hyper_parallel_tests.models.seeding import Batch

HERE = scenario("FSDP-L2-09")


@contract("FSDP-L2-09")
def test_trains_as_data_parallelism_does(engine, world, ledger):
    """Loss, norm, gradients and parameters of three steps are those of the whole on four cards."""
    pipeline, rows = pipeline_and_rows(engine, world, HERE.mesh(world))
    candidate = pipeline.train(rows, optimizer=optimizer)
    baseline = train_baseline(
        whole(world),
        [one.part(world.rank, world.size) for one in batches(world)],
        loss,
        optimizer=optimizer,
        wrap=DistributedDataParallel,
        average=mean_over_ranks,
    )
    assert_parity(candidate, baseline.only(pipeline.params), ledger["pp_fsdp_fp32"])


def boundary_gradients(model: Decoder, given: list[Batch]) -> list[Tensor]:
    """Of what the first block gives, for each batch on one card."""
    found: list[Tensor] = []
    model.blocks[0].register_full_backward_hook(lambda _, __, gradients: found.append(gradients[0].clone()))
    for batch in given:
        loss(model, batch).backward()
    return found


@contract("FSDP-L2-09")
def test_gradients_at_the_boundary(engine, world, ledger):
    """What the second stage sends back, and the first one takes, is the single card's gradient of these rows."""
    pipeline, rows = pipeline_and_rows(engine, world, HERE.mesh(world))
    # An engine may learn shapes in its first run, by passes of its own.
    pipeline.run(rows[0])
    found: list[Tensor] = []

    def note(_: nn.Module, gradients: tuple[Tensor, ...]) -> None:
        found.append(gradients[0].detach().clone())

    for stage, module in pipeline.modules.items():
        if stage == 0:
            module.blocks["0"].register_full_backward_pre_hook(note)
        else:
            module.blocks["1"].register_full_backward_hook(lambda block, to_inputs, _: note(block, to_inputs))
    shards = HERE.dims["fsdp"]
    whole_rows = in_clean_process(boundary_gradients, whole(world), batches(world))
    for own, expected in zip(rows, whole_rows, strict=True):
        pipeline.run(own)
        # The mean over a shard's rows weighs a row more than the mean over all rows.
        mine = expected.chunk(shards)[world.rank % shards] * shards
        assert_close(torch.cat(found), mine, ledger["pp_fsdp_fp32"], what="gradient between the stages")
        found.clear()


@contract("FSDP-L2-09")
def test_life_cycle_is_closed(engine, world):
    """After a step each parameter is this rank's shard, no message is under way and nothing has grown."""
    pipeline, (rows, *_) = pipeline_and_rows(engine, world, HERE.mesh(world))
    assert_closed(lambda: pipeline.run(rows), optimizer(pipeline.model.parameters()), pipeline.model)
