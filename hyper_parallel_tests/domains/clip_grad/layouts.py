"""The network laid over ranks in the ways whose norm differs: which parts are divided, and which are copies."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.domains.clip_grad.setting import EVEN, ODD, network, sharded_network
from hyper_parallel_tests.harness import World
from hyper_parallel_tests.models.mlp import Mlp


def fsdp(engine: Any, world: World, width: int = ODD) -> Mlp:
    """Everything divided over all ranks."""
    return sharded_network(engine, world, width=width)


def fsdp_with_copies(engine: Any, world: World) -> Mlp:
    """Weights divided over all ranks, biases whole on each."""
    model = network(world)
    return engine.fully_shard(
        model,
        mesh=world.mesh(dp=world.size),
        shard_placement_fn=lambda one: engine.Replicate() if one.ndim == 1 else None,
    )


def hsdp(engine: Any, world: World) -> Mlp:
    """Two replicas of what is divided over half of the ranks."""
    return sharded_network(engine, world, world.mesh(replicate=2, shard=world.size // 2))


def tp(engine: Any, world: World) -> Mlp:
    """A pair of layers divided by columns and rows, the row layer's bias and the last layer whole on each rank."""
    return divided(engine, network(world, EVEN), world.mesh(tp=world.size))


def tp_fsdp(engine: Any, world: World) -> Mlp:
    """The same over half of the ranks, all of it divided over the other dimension of the mesh."""
    mesh = world.mesh(dp=world.size // 2, tp=2)
    model = divided(engine, network(world, EVEN), mesh["tp"])
    for layer in model.layers:
        engine.fully_shard(layer, mesh=mesh["dp"])
    return engine.fully_shard(model, mesh=mesh["dp"])


def divided(engine: Any, model: Mlp, mesh: Any) -> Mlp:
    """The first two layers over a mesh of one dimension, as tensor parallelism divides a feed-forward block."""
    return engine.parallelize_module(
        model,
        mesh,
        {"layers.0": engine.ColwiseParallel(), "layers.1": engine.RowwiseParallel()},
    )
