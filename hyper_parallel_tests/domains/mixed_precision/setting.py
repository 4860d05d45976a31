"""The network that the cases train, its data, and how it is wrapped under a policy."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from hyper_parallel_tests.domains.mixed_precision.reference import loss
from hyper_parallel_tests.harness import World
from hyper_parallel_tests.models.mlp import Mlp, mlp, mlp_batch
from hyper_parallel_tests.models.seeding import Batch

# On two ranks even shards, which every engine has, and a shorter last one that is padded in some dtype.
WIDTHS = {"even": 8, "odd": 7}
WIDTH = WIDTHS["even"]
ROWS = 8

each_width = pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)


def network(world: World, width: int = WIDTH, depth: int = 3) -> Mlp:
    """Linear layers on one card, in fp32, with the same weights each time."""
    return mlp(width, depth).to(world.device)


def batch(world: World, seed: int = 0, width: int = WIDTH) -> Batch:
    """Rows for all ranks, the same on each; the mean over the ranks' losses is the whole batch's loss."""
    return mlp_batch(seed, ROWS, width).to(world.device)


def mine(world: World, rows: Batch) -> Batch:
    """This rank's rows."""
    return rows.part(world.rank, world.size)


def wrapped(engine: Any, world: World, model: nn.Module, **policy: Any) -> Any:
    """A model as one unit over all ranks, under the policy of these fields."""
    policy = engine.MixedPrecisionPolicy(**policy)
    return engine.fully_shard(model, mesh=world.mesh(dp=world.size), mp_policy=policy)


def loss_of(model: nn.Module, rows: Batch) -> Tensor:
    """Loss of a model whose engine does the casting."""
    return loss(model(rows.inputs), rows)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradients of a module by name, as the optimizer reads them; those that have none are not in it."""
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
