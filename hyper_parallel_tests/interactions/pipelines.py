"""Pipelines whose ranks have some stages each, however these are divided and sharded, and their training."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hyper_parallel_tests.harness import mean_over_ranks, train
from hyper_parallel_tests.harness.judging.comparison import full
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.seeding import Batch

__all__ = ["Pipeline"]


class Pipeline:
    """One rank's side of equally long pipelines over all ranks, whose last stages give losses.

    Args:
        modules: this rank's stages, by number; the last one of all takes `targets`.
        stages: how many there are of all ranks.
        group: the ranks of this rank's pipeline.
        schedule: the engine's, of stages.
        micro_batches: whose losses add up to that of this rank's rows.
        params: name in the whole network -> parameter; those of the modules unless given.
        copies: names of those that an earlier stage has too, which the norm does not count again.
        named: what all of this rank's stages take by name.
        options: of the engine's stages.

    Attributes:
        modules, group, params: as above.
        model: all of this rank's stages.
    """

    def __init__(
        self,
        engine: Any,
        modules: Mapping[int, nn.Module],
        stages: int,
        group: Any,
        schedule: Callable[[Any, int], Any],
        micro_batches: int,
        *,
        params: Mapping[str, nn.Parameter] | None = None,
        copies: Collection[str] = (),
        named: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.modules, self.group = modules, group
        self.model = nn.ModuleList(modules.values())
        self.params = dict(_named(modules.values())) if params is None else params
        self._stages, self._copies, self._named = stages, copies, named or {}
        self._device = next(self.model.parameters()).device
        made = [
            engine.PipelineStage(module, stage, stages, device=self._device, group=group, **options)
            for stage, module in modules.items()
        ]
        self._schedule = schedule(made[0] if len(made) == 1 else made, micro_batches)

    def run(self, rows: Batch) -> list[Tensor]:
        """One pass of this pipeline's rows; gives the last stage's losses."""
        given = (rows.inputs,) if 0 in self.modules else ()
        targets = {"targets": rows.targets} if self._stages - 1 in self.modules else {}
        return self._schedule.run(*given, **self._named, **targets)

    def loss(self, _: nn.Module, rows: Batch) -> Tensor:
        """One pass; the loss of all pipelines' rows, on all ranks."""
        return self._of_all_stages(torch.stack([torch.zeros((), device=self._device), *self.run(rows)]).sum())

    def norm(self, _: nn.Module) -> float:
        """Of the gradients of all stages."""
        squares = [
            full(one.grad).double().square().sum()
            for name, one in self.params.items()
            if one.grad is not None and name not in self._copies
        ]
        return math.sqrt(self._of_all_stages(torch.stack(squares).sum().to(self._device)))

    def train(self, given: Sequence[Any], **options: Any) -> Track:
        """This rank's parameters are in it, loss and norm are those of all stages."""
        options = {"loss": self.loss, "before_update": self.norm, "params": self.params.items} | options
        return train(self.model, given, backward=None, **options)

    def _of_all_stages(self, own: Tensor) -> Tensor:
        """The sum over the stages of a pipeline, and the mean of all pipelines'."""
        return mean_over_ranks(own) * dist.get_world_size(self.group)


def _named(modules: Iterable[nn.Module]) -> Iterable[tuple[str, nn.Parameter]]:
    return (pair for module in modules for pair in module.named_parameters())
