"""A network in stages of a pipeline, and in which order each rank computes which micro-batch of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.harness import World, assert_equal
from hyper_parallel_tests.interactions.pipelines import Pipeline
from hyper_parallel_tests.models.mlp import mlp_batch
from hyper_parallel_tests.models.seeding import Batch, build

__all__ = [
    "MICRO_BATCHES",
    "STEPS",
    "Action",
    "NotedPipeline",
    "Notes",
    "batches",
    "each_schedule",
    "layers_of",
    "loss",
    "named",
    "sgd",
    "whole",
]

DEPTH, WIDTH, INNER, ROWS, STEPS, MICRO_BATCHES = 8, 8, 12, 8, 3, 4
SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B"}
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES)
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class Layer(nn.Module):
    """A feed-forward, added to its input, and a tanh: (rows, WIDTH) in and out, whichever micro-batch it is."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, numbers: Tensor | None = None) -> Tensor:
        return torch.tanh(hidden + self.down(self.dropout(F.gelu(self.up(hidden)))))


class Layers(nn.Module):
    """Layers of a network of DEPTH, under their numbers: (rows, WIDTH) -> the same, at the end the squared error.

    Args:
        parts: of a batch, so that their losses add up to its mean.
    """

    def __init__(self, span: range, parts: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(place): Layer(dropout) for place in span})
        self._ends, self._parts = span.stop == DEPTH, parts

    def forward(self, hidden: Tensor, targets: Tensor | None = None, numbers: Tensor | None = None) -> Tensor:
        for layer in self.layers.values():
            hidden = layer(hidden, numbers)
        return F.mse_loss(hidden, targets) / self._parts if self._ends else hidden


def whole(world: World) -> Layers:
    """The network on one card."""
    return build(lambda: Layers(range(DEPTH)), 0).to(world.device)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Squared error of the whole batch, on one card."""
    return model(batch.inputs, batch.targets)


def batches(world: World, steps: int = STEPS) -> list[Batch]:
    """A batch a step, the same on all ranks."""
    return [mlp_batch(step, ROWS, WIDTH).to(world.device) for step in range(steps)]


def stages_of(schedule: str, rank: int, ranks: int) -> list[int]:
    """A rank's stages: one, or interleaved two."""
    return [rank, rank + ranks] if schedule == "interleaved" else [rank]


def spans(stages: int) -> list[range]:
    """The layers of each stage, equally many."""
    return [range(DEPTH * place // stages, DEPTH * (place + 1) // stages) for place in range(stages)]


def layers_of(world: World, schedule: str, *, dropout: float = 0.0) -> dict[int, Layers]:
    """This rank's stages of the network, by number."""
    own = stages_of(schedule, world.rank, world.size)
    cut = spans(len(own) * world.size)
    return {stage: build(partial(Layers, cut[stage], MICRO_BATCHES, dropout), 0).to(world.device) for stage in own}


class Action(NamedTuple):
    """A stage's forward (F) or backward (B) of a micro-batch, or a layer's second forward (R) of it."""

    what: str
    place: int
    micro: int


def planned(schedule: str, rank: int, ranks: int) -> list[Action]:
    """The order in which a rank computes: some forward passes, then one and one backward in turn, then the rest."""
    own = stages_of(schedule, rank, ranks)
    rounds = [range(first, first + ranks) for first in range(0, MICRO_BATCHES, ranks)]
    forward = [Action("F", stage, micro) for some in rounds for stage in own for micro in some]
    backward = [Action("B", stage, micro) for some in rounds for stage in reversed(own) for micro in some]
    ahead = {"gpipe": len(forward), "1f1b": ranks - 1 - rank, "interleaved": ranks + 2 * (ranks - 1 - rank)}[schedule]
    order = forward[:ahead]
    for place, action in enumerate(backward, start=ahead):
        order += [*forward[place : place + 1], action]
    return order


@dataclass
class Notes:
    """What one rank did.

    Attributes:
        order: what it computed, in order.
        got, gave: what an action was computed from, and what it gave: activations of F, their gradients of B.
    """

    order: list[Action] = field(default_factory=list)
    got: dict[Action, Tensor] = field(default_factory=dict)
    gave: dict[Action, Tensor] = field(default_factory=dict)

    def assert_passed_on(self, group: Any) -> list[Tensor]:
        """What an action was computed from is, bit by bit, what the neighbouring stage gave for that micro-batch.

        Returns:
            what this rank's stages got from neighbours.
        """
        of_all: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(of_all, self.gave, group=group)
        gave = {action: given for one in of_all for action, given in one.items()}
        stages = {action.place for action in gave}
        sources = {one: one._replace(place=one.place + (-1 if one.what == "F" else 1)) for one in self.got}
        got = {one: tensor for one, tensor in self.got.items() if sources[one].place in stages}
        missing = [str(sources[one]) for one in got if sources[one] not in gave]
        assert got, "nothing was computed from what a neighbour gave"
        assert not missing, f"something was computed from {missing}, which no neighbour gave"
        due = {str(one): gave[sources[one]] for one in got}
        assert_equal({str(one): tensor for one, tensor in got.items()}, due, what="what a neighbour gave")
        return list(got.values())


class NotedPipeline(Pipeline):
    """One rank's side of a pipeline over the ranks of a mesh of one dimension, which tells what it computes.

    Args:
        schedule: one of SCHEDULES.
        modules: this rank's stages, by number; they take `numbers`, of which each micro-batch has one.
        params: name -> parameter, where a wrapper has changed the names.

    Attributes:
        mesh: as above.
        plan: what a run computes on this rank, in order.
    """

    def __init__(
        self,
        engine: Any,
        world: World,
        schedule: str,
        modules: Mapping[int, nn.Module],
        mesh: Any,
        params: Mapping[str, nn.Parameter] | None = None,
    ) -> None:
        super().__init__(
            engine,
            modules,
            len(modules) * mesh.size(),
            mesh.get_group(),
            getattr(engine, SCHEDULES[schedule]),
            MICRO_BATCHES,
            params=params,
            named={"numbers": torch.arange(MICRO_BATCHES, device=world.device)},
        )
        self.mesh, self.plan = mesh, planned(schedule, mesh.get_local_rank(), mesh.size())

    @contextmanager
    def noted(self, regions: Mapping[int, nn.Module] = MappingProxyType({})) -> Iterator[Notes]:
        """Context that notes what this rank's stages compute in it.

        Args:
            regions: layers by number, whose second forward passes are noted too.
        """
        notes, handles = Notes(), []

        def before(stage: int, module: nn.Module, args: Any, kwargs: Any) -> None:
            micro = int(kwargs["numbers"])
            notes.order.append(Action("F", stage, micro))
            notes.got[notes.order[-1]] = args[0].detach().cpu().clone()
            if args[0].requires_grad:
                handles.append(args[0].register_hook(partial(keep, notes.gave, Action("B", stage, micro))))

        def after(stage: int, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
            micro = int(kwargs["numbers"])
            notes.gave[Action("F", stage, micro)] = output.detach().cpu().clone()
            output.register_hook(partial(begin, Action("B", stage, micro)))

        def again(layer: int, module: nn.Module, args: Any) -> None:
            if torch._C._current_graph_task_id() != -1:
                notes.order.append(Action("R", layer, int(args[1])))

        def begin(action: Action, gradient: Tensor) -> None:
            notes.order.append(action)
            keep(notes.got, action, gradient)

        def keep(where: dict[Action, Tensor], action: Action, gradient: Tensor) -> None:
            where[action] = gradient.detach().cpu().clone()

        for stage, module in self.modules.items():
            handles.append(module.register_forward_pre_hook(partial(before, stage), with_kwargs=True))
            handles.append(module.register_forward_hook(partial(after, stage), with_kwargs=True))
        handles += [layer.register_forward_pre_hook(partial(again, number)) for number, layer in regions.items()]
        try:
            yield notes
        finally:
            for one in handles:
                one.remove()


def named(modules: Mapping[int, nn.Module]) -> dict[str, nn.Parameter]:
    """The parameters of some stages, by the names that they have in the whole network."""
    return {name: one for module in modules.values() for name, one in module.named_parameters()}
