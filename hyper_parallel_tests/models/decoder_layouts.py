"""A decoder laid over ranks by degrees of parallelism: stages, replicas, shards, divided layers; and one step of it.

It takes the engine as an argument and knows none. Meshes have the dimensions pp, dp, fsdp and tp, or some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.models.decoder import Decoder
from hyper_parallel_tests.models.moe import MoeLayer
from hyper_parallel_tests.models.seeding import Batch

__all__ = ["DIMENSIONS", "DecoderStage", "LaidOut", "adam", "lay_out", "step_of", "whole_positions"]

DIMENSIONS = ("pp", "dp", "fsdp", "tp")

adam = partial(torch.optim.AdamW, lr=1e-3, foreach=False)


def whole_positions(tokens: Tensor) -> Tensor:
    """Places in the row of (batch, seq) tokens."""
    return torch.arange(tokens.shape[1], device=tokens.device)


class DecoderStage(nn.Module):
    """Some blocks of a decoder, under their own names, with what stands before the first and behind the last of all.

    Takes tokens (rows, seq) or hidden states (rows, seq, hidden), and gives hidden states; the last stage gives the
    cross entropy of the next token, over `parts`: so that the parts of a batch add up to its mean.
    """

    def __init__(self, whole: Decoder, blocks: range, parts: int = 1) -> None:
        super().__init__()
        self.embedding = whole.embedding if blocks.start == 0 else None
        self.blocks = nn.ModuleDict({str(place): whole.blocks[place] for place in blocks})
        self.is_last, self.parts = blocks.stop == len(whole.blocks), parts
        self.norm, self.output = (whole.norm, whole.output) if self.is_last else (None, None)

    def forward(self, given: Tensor, targets: Tensor | None = None) -> Tensor:
        positions = whole_positions(given)
        hidden = given if self.embedding is None else self.embedding(given)
        for block in self.blocks.values():
            hidden = block(hidden, positions)
        if not self.is_last:
            return hidden
        return F.cross_entropy(self.output(self.norm(hidden)).flatten(0, 1), targets.flatten()) / self.parts


@dataclass(frozen=True)
class LaidOut:
    """One rank's part of a decoder.

    Attributes:
        model: its stage, divided and sharded.
        stage, stages: which of how many; 0 of 1 without a pipeline.
        share: which of how many equal parts of the batch's rows are this rank's.
    """

    model: DecoderStage
    stage: int
    stages: int
    share: tuple[int, int]

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    def part(self, batch: Batch) -> Batch:
        """This rank's rows."""
        return batch.part(*self.share)


def lay_out(engine: Any, whole: Decoder, mesh: Any, *, stages: Sequence[range] = (), micro_batches: int = 1) -> LaidOut:
    """Takes this rank's part out of a whole decoder, in place.

    Args:
        mesh: of all ranks, with some of `DIMENSIONS` in their order; with dp also fsdp, of 1 perhaps.
        stages: blocks of each stage; equal numbers unless given.
        micro_batches: of a pipeline.
    """
    sizes = dict(zip(mesh.mesh_dim_names, (mesh.size(place) for place in range(mesh.ndim)), strict=True))
    pp, tp = sizes.get("pp", 1), sizes.get("tp", 1)
    depth = len(whole.blocks)
    cuts = stages or [range(depth * place // pp, depth * (place + 1) // pp) for place in range(pp)]
    stage = mesh.get_local_rank("pp") if pp > 1 else 0
    model = DecoderStage(whole, cuts[stage], micro_batches if pp > 1 else 1)
    if tp > 1:
        engine.parallelize_module(model, mesh["tp"], _plan(engine, model))
    data = tuple(name for name in ("dp", "fsdp") if sizes.get(name, 1) > 1)
    if data:
        # With replicas alone a parameter is a shard over one rank.
        shard(engine, model, mesh[("dp", "fsdp")] if data[0] == "dp" else mesh["fsdp"])
    return LaidOut(model, stage, pp, _share(mesh, sizes))


def shard(engine: Any, model: DecoderStage, mesh: Any) -> None:
    """Block by block, then the rest."""
    for block in model.blocks.values():
        engine.fully_shard(block, mesh=mesh)
    engine.fully_shard(model, mesh=mesh)


def _share(mesh: Any, sizes: dict[str, int]) -> tuple[int, int]:
    place, parts = 0, 1
    for name in ("dp", "fsdp"):
        if name in sizes:
            place, parts = place * sizes[name] + mesh.get_local_rank(name), parts * sizes[name]
    return place, parts


def _plan(engine: Any, model: DecoderStage) -> dict[str, Any]:
    """Attention by heads, feed-forward by its inner width, vocabulary by rows and columns; layers of experts whole."""
    whole = engine.Replicate()
    plan: dict[str, Any] = {}
    if model.embedding is not None:
        plan["embedding"] = engine.RowwiseParallel(input_layouts=whole, output_layouts=whole)
    for place, block in model.blocks.items():
        parts = {"attention": ("q", "k", "v", "o", (whole, None))}
        if not isinstance(block.ffn, MoeLayer):
            parts["ffn"] = ("gate", "up", "down", (whole,))
        for part, (*columns, rows, given) in parts.items():
            name = f"blocks.{place}.{part}"
            plan[name] = engine.PrepareModuleInput(input_layouts=given, desired_input_layouts=given)
            plan |= {f"{name}.{one}": engine.ColwiseParallel() for one in columns}
            plan[f"{name}.{rows}"] = engine.RowwiseParallel()
    if model.output is not None:
        plan["output"] = engine.ColwiseParallel(input_layouts=whole, output_layouts=whole)
    return plan


def step_of(engine: Any, laid: LaidOut, mesh: Any, micro_batches: int = 1) -> Callable[[Batch], Tensor | None]:
    """Forward and backward of this rank's rows; gives the loss of them, None on the stages before the last."""
    if laid.stages == 1:
        return partial(_plain_step, laid.model)
    group = mesh.get_group("pp")
    stage = engine.PipelineStage(laid.model, laid.stage, laid.stages, group=group)
    return partial(_piped_step, laid, engine.Schedule1F1B(stage, micro_batches))


def _plain_step(model: nn.Module, rows: Batch) -> Tensor:
    loss = model(rows.inputs, rows.targets)
    loss.backward()
    return loss.detach()


def _piped_step(laid: LaidOut, schedule: Any, rows: Batch) -> Tensor | None:
    given = (rows.inputs,) if laid.is_first else ()
    named = {"targets": rows.targets} if laid.model.is_last else {}
    parts = schedule.run(*given, **named)
    return torch.stack([one.detach() for one in parts]).sum() if laid.model.is_last else None
