"""A decoder divided by tensor parallelism with a divided sequence, then sharded block by block; its data and loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.harness import World
from hyper_parallel_tests.models.decoder import Decoder, DecoderShape, decoder, decoder_batch
from hyper_parallel_tests.models.seeding import Batch

SHAPE = DecoderShape(vocab=32, hidden=16, layers=2, heads=4, kv_heads=2, ffn=24, seq=8, tied=False)
STEPS, ROWS = 3, 4

optimizer = partial(torch.optim.AdamW, lr=1e-2, eps=1e-3, foreach=False)


def whole(world: World, seed: int = 0) -> Decoder:
    """The decoder on one card."""
    return decoder(SHAPE, seed=seed).to(world.device)


def batches(world: World, steps: int = STEPS) -> list[Batch]:
    """Rows of all ranks, a batch a step; the same on each rank."""
    return [decoder_batch(step, ROWS, SHAPE).to(world.device) for step in range(steps)]


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of the next token; positions are the whole row's, for a rank may have some of its tokens only."""
    positions = torch.arange(batch.inputs.shape[1], device=batch.inputs.device)
    return F.cross_entropy(model(batch.inputs, positions).flatten(0, 1), batch.targets.flatten())


def laid_out(engine: Any, world: World, tensor: Any, data: Any, seed: int = 0) -> Decoder:
    """The decoder divided over the mesh `tensor` of one dimension, then sharded over the mesh `data`."""
    model = whole(world, seed)
    engine.parallelize_module(model, tensor, _plan(engine))
    return in_shards(engine, model, data)


def in_shards(engine: Any, model: Decoder, data: Any) -> Decoder:
    """The decoder sharded over the mesh `data`, each block a unit."""
    for block in model.blocks:
        engine.fully_shard(block, mesh=data)
    return engine.fully_shard(model, mesh=data)


def _plan(engine: Any) -> dict[str, Any]:
    """Norms run on this rank's tokens, so that their gradients are parts of sums when they reach the sharding."""
    tokens, everywhere = engine.Shard(1), engine.Replicate()
    columns, rows = engine.ColwiseParallel, partial(engine.RowwiseParallel, output_layouts=tokens)
    gathered = {
        "attention": engine.PrepareModuleInput(
            input_layouts=(tokens, None), desired_input_layouts=(everywhere, None), use_local_output=True
        ),
        "ffn": engine.PrepareModuleInput(
            input_layouts=(tokens,), desired_input_layouts=(everywhere,), use_local_output=True
        ),
    }
    norms = ("norm", "blocks.*.attention_norm", "blocks.*.ffn_norm")
    return {
        "embedding": rows(input_layouts=everywhere),
        **{f"blocks.*.{name}": style for name, style in gathered.items()},
        **{f"blocks.*.attention.{name}": columns() for name in "qkv"},
        "blocks.*.attention.o": rows(),
        **{f"blocks.*.ffn.{name}": columns() for name in ("gate", "up")},
        "blocks.*.ffn.down": rows(),
        **{name: engine.SequenceParallel(use_local_output=True) for name in norms},
        "output": columns(input_layouts=tokens, output_layouts=everywhere),
    }
