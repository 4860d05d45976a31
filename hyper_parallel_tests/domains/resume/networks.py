"""The network that the runs train, whole, divided, or in stages, and the rows that it learns from."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from hyper_parallel_tests.harness import World
from hyper_parallel_tests.models.seeding import Batch, build, generator

__all__ = ["LAYOUTS", "Network", "Rows", "divided", "loss_of", "network", "pipelined", "rows", "validation_rows"]

WIDTH, INNER, DEPTH = 4, 6, 2
GROWTH = 64
LAYOUTS = {
    "one": {},
    "fsdp": {"fsdp": 2},
    "tp": {"tp": 2},
    "fsdp_4": {"fsdp": 4},
    "fsdp_tp": {"fsdp": 2, "tp": 2},
    "pp": {"pp": 2},
}


class Layer(nn.Module):
    """A feed-forward beside a shortcut, (rows, WIDTH) in and out."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(self.dropout(torch.tanh(self.up(hidden))))


class Network(nn.Module):
    """Layers by number, (rows, WIDTH) in and out; with targets, as the last stage gets them, a loss.

    Attributes:
        calls: how many forwards in training there were, by each of which the inputs grow, unless it does not grow.
        streams: a tracker with a stream `noise`, from which each forward in training takes a number for its inputs.
    """

    def __init__(self, layers: range = range(DEPTH), dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): Layer(dropout) for number in layers})
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.grows = True
        self.streams: Any = None

    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        if self.training:
            hidden = hidden * (1 + self.calls / GROWTH)
            self.calls += self.grows
        if self.streams is not None and self.training:
            with self.streams.fork("noise"):
                hidden = hidden + 0.1 * torch.rand(())
        # By number, whatever the order of registration.
        for number in sorted(self.layers):
            hidden = self.layers[number](hidden)
        return hidden if targets is None else F.mse_loss(hidden, targets)


class Rows(Dataset):
    """Normal rows and their targets; noisy ones get noise from Python's and NumPy's generators when they are read."""

    def __init__(self, count: int, noisy: bool) -> None:
        source = generator(count, "rows")
        self._inputs, self._targets = (torch.randn(count, WIDTH, generator=source) for _ in range(2))
        self._noisy = noisy

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, row: int) -> Batch:
        if not self._noisy:
            return Batch(self._inputs[row], self._targets[row])
        return Batch(self._inputs[row] + 0.1 * random.random(), self._targets[row] + 0.1 * float(np.random.random()))


def network(seed: int, dropout: float = 0.0, layers: range = range(DEPTH)) -> Network:
    """The weights of a seed, the same in a stage as in the whole."""
    return build(lambda: Network(layers, dropout), seed)


def rows(noisy: bool = False) -> Rows:
    """Training's: as many as fill no whole number of batches."""
    return Rows(20, noisy)


def validation_rows() -> Rows:
    return Rows(4, noisy=False)


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    """Squared error averaged over all elements."""
    inputs, targets = (one.to(next(model.parameters()).device) for one in batch)
    return F.mse_loss(model(inputs), targets)


def divided(world: World, model: Network, layout: str) -> tuple[Network, Any]:
    """The model over the ranks of a layout, and their mesh, or None for a single rank."""
    dims = LAYOUTS[layout]
    model = model.to(world.device)
    if not dims:
        return model, None
    engine, mesh = world.engine, world.mesh(**dims)
    if "tp" in dims:
        for layer in model.layers.values():
            plan = {"up": engine.ColwiseParallel(), "down": engine.RowwiseParallel()}
            engine.parallelize_module(layer, mesh["tp"], plan)
    if "fsdp" in dims:
        for layer in model.layers.values():
            engine.fully_shard(layer, mesh=mesh["fsdp"])
        engine.fully_shard(model, mesh=mesh["fsdp"])
    return model, mesh


def pipelined(world: World, stage: Network, mesh: Any) -> Callable[[nn.Module, Any, float], Tensor]:
    """Forward and backward of a batch in two stages and one micro-batch, with the loss on every rank."""
    engine = world.engine
    index = mesh.get_local_rank("pp")

    def forward_backward(model: nn.Module, batch: Any, share: float) -> Tensor:
        inputs, targets = (one.to(world.device) for one in batch)
        is_last = index == mesh.size() - 1
        piped = engine.PipelineStage(_Share(stage, share), index, mesh.size(), world.device, mesh.get_group())
        schedule = engine.Schedule1F1B(piped, 1)
        losses = schedule.run(*([inputs] if index == 0 else []), **({"targets": targets} if is_last else {}))
        loss = losses[0] / share if is_last else torch.zeros((), device=world.device)
        dist.broadcast(loss, mesh.size() - 1)
        return loss

    return forward_backward


class _Share(nn.Module):
    """A stage whose last output, the loss, is multiplied by a share."""

    def __init__(self, stage: Network, share: float) -> None:
        super().__init__()
        self.stage, self.share = stage, share

    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        found = self.stage(hidden, targets)
        return found if targets is None else found * self.share
