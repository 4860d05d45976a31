"""The network that the cases clip, its data, how it is sharded, and what a single card makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.clip_grad.reference import clip_on_one_card
from hyper_parallel_tests.harness import World, in_clean_process, train_baseline
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.mlp import Mlp, mlp, mlp_batch, mlp_loss
from hyper_parallel_tests.models.seeding import Batch

# Odd, so that shards are uneven; even where tensor parallelism divides features, which must come out equal.
ODD, EVEN = 7, 8
ROWS = 8
STEPS = 2
LEARNING_RATE = 0.1

loss = mlp_loss


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """An optimizer that shows the size of a gradient in the parameters, and in a momentum."""
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9)


def network(world: World, width: int = ODD) -> Mlp:
    """Three linear layers, on one card, with the same weights each time."""
    return mlp(width).to(world.device)


def batch(world: World, seed: int = 0, width: int = ODD) -> Batch:
    """Rows for all ranks, the same on each; the mean over the ranks' losses is the whole batch's loss."""
    return mlp_batch(seed, ROWS, width).to(world.device)


def batches(world: World, width: int = ODD) -> list[Batch]:
    """One batch a step."""
    return [batch(world, seed, width) for seed in range(STEPS)]


def mine(world: World, rows: Batch) -> Batch:
    """This rank's rows, where each rank has its own."""
    return rows.part(world.rank, world.size)


def sharded_network(engine: Any, world: World, mesh: Any = None, width: int = ODD) -> Any:
    """The network wrapped layer by layer over a mesh, without one over all ranks."""
    model = network(world, width)
    mesh = world.mesh(dp=world.size) if mesh is None else mesh
    for layer in model.layers:
        engine.fully_shard(layer, mesh=mesh)
    return engine.fully_shard(model, mesh=mesh)


def single_card_gradients(world: World, *rows: Batch) -> dict[str, Tensor]:
    """Gradients of the network on one card, accumulated over the given batches."""
    return in_clean_process(accumulated_gradients, network(world), rows)


def accumulated_gradients(model: nn.Module, rows: Sequence[Batch]) -> dict[str, Tensor]:
    """Gradients of a plain model after a backward for each batch."""
    for one in rows:
        loss(model, one).backward()
    return gradients(model)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradients of a module by name, as the optimizer reads them; those that have none are not in it."""
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def own_shard(world: World, full: Tensor) -> Tensor:
    """This rank's part of a tensor that is divided on dimension 0 over all ranks."""
    return full.chunk(world.size)[world.rank]


def shards(engine: Any, model: nn.Module) -> dict[str, Tensor]:
    """This rank's own part of the gradients; those that it lacks are not in it."""
    return {one.name: one.grad for one in engine.managed_parameters(model) if one.grad is not None}


def train_on_one_card(
    model: nn.Module,
    rows: list[Batch],
    max_norm: float,
    norm_type: float = 2.0,
    loss: Callable[[nn.Module, Batch], Tensor] = loss,
) -> Track:
    """Trains the whole model on one card, clipping each step."""
    clip = partial(clip_on_one_card, max_norm=max_norm, norm_type=norm_type)
    return train_baseline(model, rows, loss, optimizer=sgd, before_update=clip)
