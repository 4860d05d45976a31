"""A layer of experts with a gate, on one card or with the experts divided over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.domains.clip_grad.setting import EVEN, ROWS, STEPS, mine, sgd
from hyper_parallel_tests.harness import World, mean_over_ranks, train
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.mlp import mlp_batch
from hyper_parallel_tests.models.seeding import Batch, build

EXPERTS, HIDDEN = 4, 3


def _of_one_card(weights: Tensor) -> Tensor:
    return weights


class Experts(nn.Module):
    """Every expert sees every row, and its share in the output is the gate's: (rows, width) -> (rows, width).

    Expert e is rows e * HIDDEN ... of `up` and the same columns of `down`. `gathered` turns the gate's weights
    of this rank's rows into those of all rows for the experts that this rank computes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(EVEN, EXPERTS)
        self.up = nn.Linear(EVEN, EXPERTS * HIDDEN)
        self.down = nn.Linear(EXPERTS * HIDDEN, EVEN, bias=False)
        self.gathered: Callable[[Tensor], Tensor] = _of_one_card

    def forward(self, inputs: Tensor) -> Tensor:
        weights = self.gathered(torch.softmax(self.gate(inputs), dim=-1))
        hidden = torch.tanh(self.up(inputs))
        return self.down(hidden * weights.repeat_interleave(HIDDEN, dim=-1))


def experts(world: World) -> Experts:
    """All experts on one card, with the same weights each time."""
    return build(Experts, seed=0).to(world.device)


def batches(world: World) -> list[Batch]:
    """Rows for all ranks, one batch a step."""
    return [mlp_batch(seed, ROWS, EVEN).to(world.device) for seed in range(STEPS)]


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Squared error averaged over all elements."""
    return F.mse_loss(model(batch.inputs), batch.targets)


def divide(engine: Any, model: Experts, mesh: Any) -> Experts:
    """Divides the experts over a mesh of one dimension, all ranks of which bring rows of their own.

    Gathering the rows sums the experts' gradients over those ranks in backward.
    """
    rows, features = engine.Shard(0), engine.Shard(1)
    engine.parallelize_module(
        model,
        mesh,
        {
            "up": engine.ColwiseParallel(input_layouts=rows),
            "down": engine.RowwiseParallel(input_layouts=features, output_layouts=rows),
        },
    )
    own = EXPERTS // mesh.size()
    first = own * mesh.get_local_rank()

    def gathered(weights: Tensor) -> Tensor:
        of_all_rows = engine.differentiable_all_gather(weights, 0, group=mesh.get_group())
        return of_all_rows[:, first : first + own]

    model.gathered = gathered
    return model


def train_experts(engine: Any, world: World, model: Experts, max_norm: float, norm_type: float) -> Track:
    """Trains on ranks with rows of their own, whose losses are parts of the whole: gradients are to be summed."""
    return train(
        model,
        [mine(world, one) for one in batches(world)],
        lambda model, rows: mean_loss(model, rows) / world.size,
        optimizer=sgd,
        average=lambda part: mean_over_ranks(part) * world.size,
        before_update=lambda model: engine.clip_grad_norm_(model.parameters(), max_norm, norm_type),
    )
