"""Stages over disjoint sets of cards, and their training as `train` does it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.domains.pipeline_parallel.networks import cut, sgd, whole_network
from hyper_parallel_tests.harness import World, train
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.mlp import Mlp

__all__ = ["CARDS", "Rows", "Side", "layers_over", "run"]

# Cards of each stage, by the number of cards that there are.
CARDS = {2: [(1, 1), (2,)], 4: [(1, 3), (3, 1), (1, 2, 1)]}


class Rows(nn.Module):
    """Some layers of an Mlp, and at the end its squared errors as shares of the mean over the batch."""

    def __init__(self, whole: Mlp, layers: range, rows: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(index): whole.layers[index] for index in layers})
        self._rows, self._is_last = rows, layers.stop == len(whole.layers)

    def forward(self, inputs: Tensor, targets: Tensor | None = None, factor: float = 1.0) -> Tensor:
        for index, layer in self.layers.items():
            inputs = layer(inputs if index == "0" else torch.tanh(inputs))
        if not self._is_last:
            return inputs
        return factor * F.mse_loss(inputs, targets, reduction="sum") / (self._rows * targets.shape[1])


class Side:
    """One rank's side of stages over disjoint sets of cards."""

    def __init__(
        self, engine: Any, world: World, cards: Sequence[int], stages: Sequence[nn.Module], micro: int
    ) -> None:
        self.ranks = [list(span) for span in cut(cards)]
        self.stage = next(index for index, ranks in enumerate(self.ranks) if world.rank in ranks)
        self.module = stages[self.stage]
        self.schedule = engine.ScheduleAcrossMeshes(self.module, self.ranks, micro)
        self.is_first, self.is_last = self.stage == 0, self.stage == len(self.ranks) - 1
        self._world = world

    def train(self, given: Sequence[Any], run: Callable[[Any], list[Tensor]]) -> Track:
        """Loss and norm are those of all stages, each of which counts once."""

        def loss(_: nn.Module, batch: Any) -> Tensor:
            own = torch.zeros((), device=self._world.device)
            for one in run(batch):
                own = own + one.detach()
            return self._of_all_stages(own)

        def norm(module: nn.Module) -> float:
            squares = sum(float(one.grad.double().square().sum()) for one in module.parameters())
            return math.sqrt(float(self._of_all_stages(torch.tensor(squares, dtype=torch.float64))))

        return train(self.module, given, loss, optimizer=sgd, backward=None, before_update=norm)

    def _of_all_stages(self, own: Tensor) -> Tensor:
        first = self._world.rank == self.ranks[self.stage][0]
        total = own if first else torch.zeros_like(own)
        torch.distributed.all_reduce(total)
        return total

    def names(self) -> set[str]:
        return {name for name, _ in self.module.named_parameters()}


def layers_over(engine: Any, world: World, cards: Sequence[int], rows: int, micro: int) -> Side:
    """Of an Mlp, one layer a stage and two in the last."""
    spans = cut([1] * (len(cards) - 1) + [2])
    stages = [Rows(whole_network(world, len(cards) + 1), span, rows) for span in spans]
    return Side(engine, world, cards, stages, micro)


def run(side: Side, batch: Any) -> list[Tensor]:
    named = {"targets": batch.targets} if side.is_last else {}
    return side.schedule.run(*([batch.inputs] if side.is_first else []), **named)
