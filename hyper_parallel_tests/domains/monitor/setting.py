"""A small network in each layout, trained with the monitor beside it, and the same numbers by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.harness import World
from hyper_parallel_tests.models.decoder import DecoderShape, decoder, decoder_batch
from hyper_parallel_tests.models.decoder_layouts import LaidOut, lay_out, step_of, whole_positions
from hyper_parallel_tests.models.held_bytes import local_part
from hyper_parallel_tests.models.seeding import Batch

__all__ = [
    "SHAPE",
    "STEPS",
    "Run",
    "batches",
    "by_hand",
    "everybody",
    "joined",
    "own_gradient",
    "run_of",
    "sgd",
    "whole_loss",
    "whole_network",
]

SHAPE = DecoderShape(vocab=20, hidden=8, layers=2, heads=2, kv_heads=2, ffn=20, seq=6, tied=False)
ROWS, STEPS, MICRO_BATCHES = 8, 2, 2


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """An optimizer that shows the size of a gradient in the parameters."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def whole_network(device: Any = "cpu") -> nn.Module:
    """On one card."""
    return decoder(SHAPE).to(device)


def batches(device: Any = "cpu") -> list[Batch]:
    """One a step, of all rows."""
    return [decoder_batch(seed, ROWS, SHAPE).to(device) for seed in range(STEPS)]


def whole_loss(model: nn.Module, batch: Batch) -> Tensor:
    """On one card."""
    logits = model(batch.inputs, whole_positions(batch.inputs))
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())


@dataclass
class Run:
    """A network in a layout, on this rank.

    Attributes:
        step: forward and backward of this rank's rows, to its loss, None on the stages before the last.
        mesh: of all ranks.
    """

    laid: LaidOut
    step: Callable[[Batch], Tensor | None]
    mesh: Any

    @property
    def model(self) -> nn.Module:
        return self.laid.model

    def monitor(self, engine: Any, **options: Any) -> Any:
        """The engine's, told of the mesh and of stages where there are some."""
        stages = "pp" if self.laid.stages > 1 else None
        return engine.TrainingStateMonitor(self.model, mesh=self.mesh, stage_dim=stages, **options)


def run_of(engine: Any, world: World, degrees: dict[str, int]) -> Run:
    """A new one."""
    mesh = world.mesh(**degrees)
    micro_batches = MICRO_BATCHES if "pp" in degrees else 1
    laid = lay_out(engine, whole_network(world.device), mesh, micro_batches=micro_batches)
    return Run(laid, step_of(engine, laid, mesh, micro_batches), mesh)


def by_hand(model: nn.Module) -> dict[str, float]:
    """Norms of this rank's parts of the gradients, element by element in double precision; 0 for those without one."""
    return {name: _norm(own_gradient(one)) for name, one in model.named_parameters() if one.requires_grad}


def own_gradient(parameter: Tensor) -> Tensor:
    """This rank's part of a gradient as the parameter lies; empty without one."""
    gradient = parameter.grad
    if gradient is None:
        return torch.empty(0)
    if getattr(gradient, "placements", None) != getattr(parameter, "placements", None):
        gradient = gradient.redistribute(placements=parameter.placements)
    return local_part(gradient)


def _norm(tensor: Tensor) -> float:
    return math.sqrt(math.fsum(value * value for value in tensor.double().flatten().tolist()))


def joined(norms: Iterable[float]) -> float:
    """The norm of several that have these."""
    return math.sqrt(math.fsum(one * one for one in norms))


def everybody(value: Any) -> list[Any]:
    """What each rank has."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
