"""A pipeline over all ranks, and its training as `train` does it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hyper_parallel_tests.domains.pipeline_parallel.kinds import Kind
from hyper_parallel_tests.domains.pipeline_parallel.networks import parts_of
from hyper_parallel_tests.harness import World, train
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.seeding import Batch

__all__ = ["Pipeline", "group_of", "pipeline", "sum_over_ranks"]


class Pipeline:
    """One rank's side of a pipeline.

    Attributes:
        modules: this rank's stages as plain modules, by stage.
        schedule: the engine's.
    """

    def __init__(self, world: World, modules: dict[int, nn.Module], stage_num: int, schedule: Any) -> None:
        self._world, self.modules, self._stage_num, self.schedule = world, modules, stage_num, schedule

    @property
    def model(self) -> nn.Module:
        return nn.ModuleList(self.modules.values())

    @property
    def is_first(self) -> bool:
        return 0 in self.modules

    @property
    def is_last(self) -> bool:
        return self._stage_num - 1 in self.modules

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """By the names that they have in the whole network."""
        return (pair for module in self.modules.values() for pair in module.named_parameters())

    def gradients(self) -> dict[str, Tensor]:
        return {name: one.grad for name, one in self.named_parameters() if one.grad is not None}

    def run(self, batch: Batch, targets: bool = True) -> list[Tensor]:
        """One pass; the last stage's outputs, which are losses if there are targets."""
        inputs = (batch.inputs,) if self.is_first else ()
        named = {"targets": batch.targets} if self.is_last and targets else {}
        return self.schedule.run(*inputs, **named)

    def loss(self, _: nn.Module, batch: Batch) -> Tensor:
        """One pass forward and backward; the loss of the batch, on all ranks."""
        own = torch.zeros((), device=self._world.device)
        for one in self.run(batch):
            own = own + one.detach()
        return sum_over_ranks(own)

    def train(self, given: Sequence[Batch], optimizer: Any = None) -> Track:
        """The parameters of this rank's stages are in it, loss and norm are those of all stages."""
        return train(
            self.model,
            given,
            self.loss,
            optimizer=optimizer,
            backward=None,
            before_update=self.norm,
            params=self.named_parameters,
        )

    def names(self) -> set[str]:
        return {name for name, _ in self.named_parameters()}

    def norm(self, _: nn.Module) -> float:
        """Of the gradients of all stages."""
        own = sum(float(one.double().square().sum()) for one in self.gradients().values())
        return math.sqrt(float(sum_over_ranks(torch.tensor(own, dtype=torch.float64, device=self._world.device))))


def pipeline(
    engine: Any,
    world: World,
    kind: Kind,
    folder: Path,
    *,
    micro_batches: int = 4,
    counts: Sequence[int] | None = None,
    modules: Sequence[nn.Module] | None = None,
    recomputed: Sequence[int] = (),
    stage_options: dict[str, Any] | None = None,
    each_stage: Sequence[dict[str, Any]] | None = None,
    **options: Any,
) -> Pipeline:
    """A pipeline of all ranks: of an Mlp with one layer a stage, or `counts`, unless there are `modules` of this rank.

    Args:
        recomputed: layers whose activations are not kept.
        stage_options, each_stage, options: of all stages of the engine, of each of this rank's, and of the schedule.
    """
    stage_num, own = kind.stage_num(world.size), kind.stages_of(world.rank, world.size)
    if modules is None:
        counts = counts or [1] * stage_num
        modules = parts_of(world, counts, own, share=1 / micro_batches, recomputed=recomputed)
    group, each_stage = group_of(world), each_stage or [{}] * len(own)
    stages = [
        engine.PipelineStage(
            module, index, stage_num, device=world.device, group=group, **(stage_options or {}), **more
        )
        for index, module, more in zip(own, modules, each_stage, strict=True)
    ]
    schedule = kind.make(engine, stages, micro_batches, folder, **options)
    return Pipeline(world, dict(zip(own, modules, strict=True)), stage_num, schedule)


def group_of(world: World) -> Any:
    """The ranks of the pipeline: all."""
    return world.mesh(pp=world.size).get_group()


def sum_over_ranks(value: Tensor) -> Tensor:
    total = value.detach().clone()
    dist.all_reduce(total)
    return total
