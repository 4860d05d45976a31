"""The network laid over ranks in the ways in which an update differs: what is divided, and how, and what are copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hyper_parallel_tests.domains.optimizer.network import EVEN, ODD, Network
from hyper_parallel_tests.harness import World
from hyper_parallel_tests.models.seeding import Batch

Lay = Callable[[Any, World, Network], Network]


@dataclass(frozen=True)
class Layout:
    """A way to lay the network over ranks.

    Attributes:
        lay: divides it in place.
        row: the ledger's, for losses and gradients.
        sizes: of the network.
        groups: how many ranks have rows of their own, by the number of ranks: the others share theirs.
    """

    lay: Lay
    row: str
    sizes: tuple[int, int] = ODD
    groups: Callable[[int], int] = int

    def rows(self, world: World, whole: Batch) -> Batch:
        """This rank's rows."""
        groups = self.groups(world.size)
        return whole.part(world.rank * groups // world.size, groups)


def fsdp(engine: Any, world: World, model: Network) -> Network:
    """Everything divided over all ranks."""
    return _sharded(engine, model, world.mesh(dp=world.size))


def hsdp(engine: Any, world: World, model: Network) -> Network:
    """Two replicas of what is divided over half of the ranks."""
    return _sharded(engine, model, world.mesh(replicate=2, shard=world.size // 2))


def tp(engine: Any, world: World, model: Network) -> Network:
    """A pair of layers divided by columns and rows, everything else whole on each rank."""
    return _divided(engine, model, world.mesh(tp=world.size))


def tp_fsdp(engine: Any, world: World, model: Network) -> Network:
    """The same over half of the ranks, all of it divided over the other dimension of the mesh."""
    mesh = world.mesh(dp=world.size // 2, tp=2)
    return _sharded(engine, _divided(engine, model, mesh["tp"]), mesh["dp"])


ON_TWO = {
    "fsdp": Layout(fsdp, "fsdp_1d_fp32"),
    "tp": Layout(tp, "tp_fp32", EVEN, lambda _: 1),
}
ON_FOUR = {
    "fsdp": Layout(fsdp, "fsdp_1d_fp32"),
    "hsdp": Layout(hsdp, "hsdp_2d_fp32"),
    "tp_fsdp": Layout(tp_fsdp, "tp_fsdp_fp32", EVEN, lambda ranks: ranks // 2),
}


def _sharded(engine: Any, model: Network, mesh: Any) -> Network:
    for layer in (model.up, model.down, model.gate, model.norm):
        engine.fully_shard(layer, mesh=mesh)
    return engine.fully_shard(model, mesh=mesh)


def _divided(engine: Any, model: Network, mesh: Any) -> Network:
    return engine.parallelize_module(model, mesh, {"up": engine.ColwiseParallel(), "down": engine.RowwiseParallel()})
