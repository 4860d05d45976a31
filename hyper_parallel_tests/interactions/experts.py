"""A decoder with layers of experts, divided over ranks and sharded as everything else is; its data and training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hyper_parallel_tests.harness import World, mean_over_ranks, train, train_baseline
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.decoder import decoder_batch
from hyper_parallel_tests.models.moe import MoeDecoder, MoeShape, moe_decoder, moe_loss
from hyper_parallel_tests.models.seeding import Batch

# One dense layer and two of experts.
SHAPE = MoeShape(
    vocab=32, hidden=16, layers=3, dense_layers=1, heads=4, kv_heads=2, ffn=24, expert_ffn=12, seq=8, tied=False
)
STEPS = 3
BALANCE = 0.1

optimizer = partial(torch.optim.AdamW, lr=1e-2, eps=1e-3, foreach=False)


def whole(world: World, shape: MoeShape = SHAPE) -> MoeDecoder:
    """The decoder on one card."""
    return moe_decoder(shape).to(world.device)


def batches(world: World, ranks: int, shape: MoeShape = SHAPE, steps: int = STEPS) -> list[Batch]:
    """A row for each of so many ranks, a batch a step; the same on all ranks."""
    return [decoder_batch(step, ranks, shape).to(world.device) for step in range(steps)]


def alike(rows: Sequence[Batch]) -> list[Batch]:
    """Each row a single token again and again, so that all of a rank's tokens choose the same experts."""
    return [Batch(one.inputs[:, :1].expand_as(one.inputs).contiguous(), one.targets) for one in rows]


def with_sharded_experts(
    engine: Any, model: MoeDecoder, ep: Any, shards: Any, data: Any, *, style: Any = None, **options: Any
) -> MoeDecoder:
    """Divides the experts over `ep` and shards these parts over `shards`; all else is sharded over `data`, by block.

    Gradients are those of the mean of all ranks' losses.

    Args:
        style: what divides the experts; ExpertParallel unless given.
        options: of `fully_shard`, for the experts.
    """
    for layer in model.expert_layers():
        (style or engine.ExpertParallel()).apply(layer.experts, ep)
        engine.fully_shard(layer.experts, mesh=shards, **options)
        # An expert has the sum over the ranks that sent it rows, of which its shards' mean knows nothing.
        layer.experts.set_gradient_scaling_factor(1 / ep.size(0))
    for block in model.blocks:
        engine.fully_shard(block, mesh=data)
    return engine.fully_shard(model, mesh=data)


def loss(model: nn.Module, batch: Batch, *, engine: Any, ranks: Any) -> Tensor:
    """One rank's loss: cross entropy of its rows, and what balances all rows of `ranks`, a mesh of one dimension."""
    balance = partial(engine.load_balancing_loss, device_mesh=ranks)
    return moe_loss(model, batch, balance=balance, coefficient=BALANCE * ranks.size())


def trained(engine: Any, model: MoeDecoder, ranks: Any, rows: Sequence[Batch]) -> Track:
    """Trains with this rank's part of the rows."""
    return train(
        model,
        [one.part(ranks.get_local_rank(), ranks.size()) for one in rows],
        partial(loss, engine=engine, ranks=ranks),
        optimizer=optimizer,
        average=mean_over_ranks,
    )


def trained_on_one_card(world: World, rows: Sequence[Batch], shape: MoeShape = SHAPE) -> Track:
    """Trains with all rows."""
    return train_baseline(whole(world, shape), rows, partial(moe_loss, coefficient=BALANCE), optimizer=optimizer)


def norms_of_experts(track: Track) -> list[dict[str, Tensor]]:
    """Of each step: layer of experts -> the norm of each expert's gradient, (experts,)."""
    return [_norms_of_experts(step.grads) for step in track.steps]


def _norms_of_experts(grads: dict[str, Tensor]) -> dict[str, Tensor]:
    squares: dict[str, Tensor] = {}
    for name, grad in grads.items():
        layer, experts, _ = name.partition(".experts.")
        if experts:
            squares[layer] = squares.get(layer, 0) + grad.double().square().flatten(1).sum(1)
    return {layer: one.sqrt() for layer, one in squares.items()}
