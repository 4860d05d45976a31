"""A plan carried out on ranks: a small decoder in its degrees and stages, trained some steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.engines.port.auto_parallel import Workload
from hyper_parallel_tests.harness import World
from hyper_parallel_tests.models.decoder import DecoderShape, decoder, decoder_batch
from hyper_parallel_tests.models.decoder_layouts import adam, lay_out, step_of, whole_positions
from hyper_parallel_tests.models.held_bytes import SavedBytes, held_by
from hyper_parallel_tests.models.seeding import Batch

__all__ = ["SHAPE", "WORKLOAD", "Outcome", "batches", "carry_out", "whole_loss"]

# Activations are more than half of what a single card holds.
SHAPE = DecoderShape(vocab=24, hidden=16, layers=4, heads=4, kv_heads=4, ffn=24, seq=12, tied=False)
WORKLOAD = Workload(SHAPE, rows=8, micro_batches=2)
STEPS = 2


class Outcome(NamedTuple):
    """Of a plan that was carried out.

    Attributes:
        losses: of each step, of the whole batch.
        bytes: that the fullest rank held.
    """

    losses: Tensor
    bytes: int


def batches(device: torch.device, workload: Workload = WORKLOAD) -> list[Batch]:
    """One a step, of all rows."""
    return [decoder_batch(seed, workload.rows, workload.shape).to(device) for seed in range(STEPS)]


def whole_loss(model: nn.Module, batch: Batch) -> Tensor:
    """On one card."""
    logits = model(batch.inputs, whole_positions(batch.inputs))
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())


def carry_out(engine: Any, world: World, plan: Any, workload: Workload = WORKLOAD) -> Outcome:
    """Trains the decoder as a plan says."""
    mesh = world.mesh(**plan.degrees)
    micro_batches = workload.micro_batches if plan.degrees["pp"] > 1 else 1
    whole = decoder(workload.shape).to(world.device)
    laid = lay_out(engine, whole, mesh, stages=plan.stages, micro_batches=micro_batches)
    optimizer = adam(laid.model.parameters())
    step = step_of(engine, laid, mesh, micro_batches)
    losses = []
    for batch in batches(world.device, workload):
        rows = laid.part(batch)
        optimizer.zero_grad()
        with SavedBytes(laid.model, rows).watched() as saved:
            losses.append(step(rows))
        optimizer.step()
    held = torch.tensor(held_by(laid.model, optimizer, saved.most).total)
    dist.all_reduce(held, op=dist.ReduceOp.MAX)
    return Outcome(_of_the_whole_batch(world, losses, laid.stages), int(held))


def _of_the_whole_batch(world: World, losses: list[Tensor | None], stages: int) -> Tensor:
    """Mean over the ranks that have a loss: equally many of each part of the batch."""
    own = torch.tensor([0.0 if one is None else float(one) for one in losses])
    dist.all_reduce(own)
    return own * stages / world.size
