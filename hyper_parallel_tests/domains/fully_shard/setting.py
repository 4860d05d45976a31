"""What most cases vary, the network that they start from, its data, how it is wrapped, and how holdings are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest
from torch import Tensor, nn

from hyper_parallel_tests.domains.fully_shard.reference import part
from hyper_parallel_tests.harness import World, in_clean_process
from hyper_parallel_tests.models.mlp import Mlp, mlp, mlp_batch, mlp_loss
from hyper_parallel_tests.models.seeding import Batch

WIDTH = 6
ROWS_PER_RANK = 4

loss = mlp_loss


@dataclass(frozen=True)
class Layout:
    """How all ranks are laid out.

    Attributes:
        replicas: how many groups of ranks hold all shards each.
        row: name of the ledger's row for what trains so.
    """

    replicas: int
    row: str

    def mesh(self, world: World) -> Any:
        """One dimension, or two of replicas and shards."""
        if self.replicas == 1:
            return world.mesh(dp=world.size)
        return world.mesh(replicate=self.replicas, shard=world.size // self.replicas)


LAYOUTS = {"whole": Layout(1, "fsdp_1d_fp32"), "hybrid": Layout(2, "hsdp_2d_fp32")}

# On two and on four ranks: even shards, a shorter last one, and some that hold no row at all.
WIDTHS = {"even": 8, "odd": 7, "empty_shards": 1}

# Not every engine fuses, shards unevenly or has all meshes: where the meaning of a case does not need it, the case is
# one of several, so that the others are judged.
each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
each_width = pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
either_width = pytest.mark.parametrize("width", [WIDTHS["even"], WIDTHS["odd"]], ids=["even", "odd"])
either_fusion = pytest.mark.parametrize("comm_fusion", [False, True], ids=["single", "fused"])
# What every engine has, and what asks the most: for cases of which more combinations would show nothing more.
plain_or_demanding = pytest.mark.parametrize(
    ("width", "comm_fusion"),
    [(WIDTHS["even"], False), (WIDTHS["odd"], True)],
    ids=["even-single", "odd-fused"],
)


def network(world: World, width: int = WIDTH) -> Mlp:
    """Three linear layers, not wrapped, with the same weights each time."""
    return mlp(width).to(world.device)


def batch(world: World, seed: int = 0, width: int = WIDTH) -> Batch:
    """Rows for all ranks, the same on each; the mean over the ranks' losses is the whole batch's loss."""
    return mlp_batch(seed, ROWS_PER_RANK * world.size, width).to(world.device)


def mine(world: World, rows: Batch) -> Batch:
    """This rank's rows of a batch for all ranks."""
    return rows.part(world.rank, world.size)


def wrap(engine: Any, model: nn.Module, children: Iterable[nn.Module], mesh: Any, **options: Any) -> Any:
    """Wraps children of a model each by itself, then the rest of it."""
    for child in children:
        engine.fully_shard(child, mesh=mesh, **options)
    return engine.fully_shard(model, mesh=mesh, **options)


def sharded_network(engine: Any, world: World, width: int = WIDTH, **options: Any) -> Any:
    """The network, wrapped layer by layer over all ranks."""
    model = network(world, width)
    return wrap(engine, model, model.layers, world.mesh(dp=world.size), **options)


def single_card_parameters(world: World) -> dict[str, Tensor]:
    """Parameters of the network on one card."""
    return {name: parameter.detach() for name, parameter in network(world).named_parameters()}


def single_card_gradients(world: World, *batches: Batch) -> dict[str, Tensor]:
    """Gradients of the network on one card, accumulated over the given batches."""
    return in_clean_process(accumulated_gradients, network(world), batches)


def accumulated_gradients(model: nn.Module, batches: Iterable[Batch]) -> dict[str, Tensor]:
    """Gradients of a plain model after a backward for each batch; those of None are not in it."""
    for rows in batches:
        loss(model, rows).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def parts(world: World, full: dict[str, Tensor]) -> dict[str, Tensor]:
    """This rank's part of each tensor, divided on dimension 0 over all ranks."""
    return {name: part(tensor, dim=0, index=world.rank, count=world.size) for name, tensor in full.items()}


def shards(engine: Any, model: nn.Module) -> dict[str, Tensor]:
    """What the optimizer updates on this rank, by parameter."""
    return {one.name: one.shard for one in engine.managed_parameters(model)}


def gradients(engine: Any, model: nn.Module) -> dict[str, Tensor]:
    """What the optimizer reads on this rank, by parameter; those without a gradient are not in it."""
    return {one.name: one.grad for one in engine.managed_parameters(model) if one.grad is not None}


def pending_gradients(engine: Any, model: nn.Module) -> dict[str, Tensor]:
    """What waits for a reduction on this rank, by parameter; those without it are not in it."""
    managed = engine.managed_parameters(model)
    return {one.name: one.pending_grad for one in managed if one.pending_grad is not None}


def resident(engine: Any, model: nn.Module) -> dict[str, Tensor]:
    """What the modules hold now on this rank, by parameter: full tensors or shards."""
    return {one.name: one.resident for one in engine.managed_parameters(model)}


def full_now(engine: Any, model: nn.Module) -> set[str]:
    """Names of the parameters that are full tensors now on this rank."""
    return {one.name for one in engine.managed_parameters(model) if one.resident.shape == one.full_shape}


def numels(tensors: dict[str, Tensor]) -> dict[str, int]:
    """Number of elements by name."""
    return {name: tensor.numel() for name, tensor in tensors.items()}


def group_bytes(engine: Any, model: nn.Module) -> dict[tuple[str, int], int]:
    """Bytes that this rank puts into one gather of each communication group, by (unit, group)."""
    sizes: dict[tuple[str, int], int] = {}
    for one in engine.managed_parameters(model):
        group = (one.unit, one.group)
        sizes[group] = sizes.get(group, 0) + one.shard.element_size() * prod(one.padded_shape)
    return sizes
