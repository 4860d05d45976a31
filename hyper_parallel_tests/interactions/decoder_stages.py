"""A decoder in stages of a pipeline, which are divided and sharded as their mesh says; its data and loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.harness import World
from hyper_parallel_tests.interactions.pipelines import Pipeline
from hyper_parallel_tests.models.decoder import DecoderShape, decoder, decoder_batch
from hyper_parallel_tests.models.decoder_layouts import LaidOut, lay_out
from hyper_parallel_tests.models.seeding import Batch

__all__ = ["MICRO_BATCHES", "SHAPE", "STEPS", "batches", "loss", "optimizer", "pipeline_and_rows", "piped", "whole"]

SHAPE = DecoderShape(vocab=12, hidden=8, layers=2, heads=4, kv_heads=2, ffn=12, seq=4, tied=False)
STEPS, ROWS, MICRO_BATCHES = 3, 4, 2

optimizer = partial(torch.optim.AdamW, lr=1e-2, eps=1e-3, foreach=False)


def whole(world: World, shape: DecoderShape = SHAPE) -> nn.Module:
    """The decoder on one card."""
    return decoder(shape).to(world.device)


def batches(world: World, shape: DecoderShape = SHAPE, steps: int = STEPS) -> list[Batch]:
    """Rows of all ranks, a batch a step; the same on each rank."""
    return [decoder_batch(step, ROWS, shape).to(world.device) for step in range(steps)]


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of the next token, on one card."""
    return F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())


def piped(engine: Any, mesh: Any, laid: LaidOut, **options: Any) -> Pipeline:
    """The pipeline of stages that `lay_out` has made for MICRO_BATCHES, under 1F1B."""
    return Pipeline(
        engine,
        {laid.stage: laid.model},
        laid.stages,
        mesh.get_group("pp"),
        engine.Schedule1F1B,
        MICRO_BATCHES,
        **options,
    )


def pipeline_and_rows(engine: Any, world: World, mesh: Any) -> tuple[Pipeline, list[Batch]]:
    """This rank's stage of the decoder, divided and sharded as the mesh says, and its rows."""
    laid = lay_out(engine, whole(world), mesh, micro_batches=MICRO_BATCHES)
    return piped(engine, mesh, laid), [laid.part(one) for one in batches(world)]
