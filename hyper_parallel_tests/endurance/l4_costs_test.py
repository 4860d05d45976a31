"""What capabilities cost: time and memory of a step with one against a step without it, in one run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hyper_parallel_tests.endurance.costs import assert_within_bands, ratios
from hyper_parallel_tests.harness import World, contract
from hyper_parallel_tests.models.decoder import DecoderShape, decoder, decoder_batch
from hyper_parallel_tests.models.decoder_layouts import DecoderStage, lay_out, step_of
from hyper_parallel_tests.models.seeding import Batch

SHAPE = DecoderShape(vocab=64, hidden=32, layers=4, heads=4, kv_heads=4, ffn=64, seq=32, tied=False)
ROWS, MICRO_BATCHES = 4, 2

optimizer = partial(torch.optim.AdamW, lr=1e-3, foreach=False)


def whole() -> DecoderStage:
    """The decoder on one card."""
    return DecoderStage(decoder(SHAPE), range(SHAPE.layers))


def training(model: nn.Module, rows: Batch, step: Callable[[Batch], Any] | None = None) -> Callable[[], None]:
    """A step from rows to update."""
    update = optimizer(model.parameters())

    def trained() -> None:
        if step is None:
            model(rows.inputs, rows.targets).backward()
        else:
            step(rows)
        update.step()
        update.zero_grad()

    return trained


def rows(world: World) -> Batch:
    return decoder_batch(0, ROWS, SHAPE).to(world.device)


def alone(world: World) -> Callable[[], None]:
    return training(whole().to(world.device), rows(world))


@contract("EN-04")
def test_tensor_parallel(engine, world, ledger):
    """Divided layers cost what the band says against whole ones on the same rows."""
    laid = lay_out(engine, decoder(SHAPE).to(world.device), world.mesh(tp=world.size))
    found = ratios(world.device, training(laid.model, rows(world)), alone(world))
    assert_within_bands(found, ledger, "tensor_parallel")


@contract("EN-04")
def test_fully_shard(engine, world, ledger):
    """Shards cost what the band says against a copy of all parameters on each rank, whose gradients are averaged."""
    model, mine = whole().to(world.device), rows(world).part(world.rank, world.size)
    mesh = world.mesh(dp=world.size)
    # With a message for each parameter it would be another measure.
    for one in (*model.blocks.values(), model):
        engine.fully_shard(one, mesh=mesh, comm_fusion=True)
    copy = DistributedDataParallel(whole().to(world.device))
    assert_within_bands(ratios(world.device, training(model, mine), training(copy, mine)), ledger, "fully_shard")


@contract("EN-04")
def test_pipeline_parallel(engine, world, ledger):
    """A stage costs what the band says against all blocks on the same rows."""
    mesh = world.mesh(pp=world.size)
    laid = lay_out(engine, decoder(SHAPE).to(world.device), mesh, micro_batches=MICRO_BATCHES)
    step = step_of(engine, laid, mesh, MICRO_BATCHES)
    assert_within_bands(
        ratios(world.device, training(laid.model, rows(world), step), alone(world)), ledger, "pipeline_parallel"
    )


@contract("EN-04")
def test_activation_checkpoint(engine, world, ledger):
    """Blocks that are computed again in backward cost what the band says against blocks that keep what they save."""
    model = whole().to(world.device)
    model.blocks = nn.ModuleDict({name: engine.checkpoint_wrapper(one) for name, one in model.blocks.items()})
    found = ratios(world.device, training(model, rows(world)), alone(world))
    assert_within_bands(found, ledger, "activation_checkpoint")


@contract("EN-04")
def test_activation_swap(engine, world, ledger):
    """Blocks whose saved tensors wait on the host cost what the band says against blocks that keep them."""
    model = whole().to(world.device)
    blocks = [engine.swap_wrapper(one) for one in model.blocks.values()]
    for first, second in zip(blocks, blocks[1:], strict=False):
        engine.SwapManager().set_forward_prefetch_layer(first, second)
    model.blocks = nn.ModuleDict(zip(model.blocks, blocks, strict=True))
    swapped = training(model, rows(world))
    with engine.watch_swap_copies() as copies:
        swapped()
    assert copies, "nothing was swapped"
    assert_within_bands(ratios(world.device, swapped, alone(world)), ledger, "activation_swap")
