"""Tensors, placements and modules that the files of this domain share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.harness import World

PLACEMENTS = {
    "R": lambda engine: engine.Replicate(),
    "S0": lambda engine: engine.Shard(0),
    "S1": lambda engine: engine.Shard(1),
    "P": lambda engine: engine.Partial("sum"),
}

# How two arguments come.
FORMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "in_place": lambda call, left, right: call(left, right),
    "by_name": lambda call, left, right: call(right=right, left=left),
    "mixed": lambda call, left, right: call(left, right=right),
}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def layout(engine: Any, *kinds: str) -> tuple[Any, ...]:
    """A tensor's layout, by a short name for each mesh dimension."""
    return tuple(PLACEMENTS[kind](engine) for kind in kinds)


def numbers(*size: int, seed: int = 0) -> Tensor:
    """Numbers that differ and that fp32 adds and multiplies exactly: small integers, the same on every rank."""
    return torch.randint(-8, 9, size, generator=torch.Generator().manual_seed(seed)).float()


def on(engine: Any, mesh: Any, tensor: Tensor, *kinds: str) -> Any:
    """`tensor` distributed over a mesh, by a short name for each of its dimensions."""
    return engine.distribute_tensor(tensor, mesh, layout(engine, *kinds))


def mesh_of(world: World) -> Any:
    """All ranks along one dimension."""
    return world.mesh(tp=world.size)


def rows(engine: Any, world: World, seed: int = 0) -> Any:
    """An (8, 8) tensor whose rows the ranks divide."""
    return on(engine, mesh_of(world), numbers(8, 8, seed=seed), "S0")


def kind_of(engine: Any, value: Any) -> Any:
    """How a distributed tensor lies on a mesh of one dimension, by the short name; anything else as it is."""
    if not isinstance(value, engine.DTensor):
        return value
    return next(kind for kind in PLACEMENTS if tuple(value.placements) == layout(engine, kind))


class Probe(nn.Module):
    """Keeps what it is given, by the names of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[str, Any] = {}

    def kinds(self, engine: Any) -> dict[str, Any]:
        """How the given arguments lie."""
        return {name: kind_of(engine, one) for name, one in self.given.items()}


class Plain(Probe):
    """Two arguments without defaults."""

    def forward(self, left: Any, right: Any) -> Any:
        self.given = {"left": left, "right": right}
        return left


class Defaults(Probe):
    """As most modules are: further arguments have defaults."""

    def forward(self, left: Any, right: Any = None, scale: Any = 2.0) -> Any:
        self.given = {"left": left, "right": right, "scale": scale}
        return left


SIGNATURES = {"plain": Plain, "defaults": Defaults}
each_signature = pytest.mark.parametrize("make", SIGNATURES.values(), ids=SIGNATURES)


class Rest(Probe):
    """Any number of arguments."""

    def forward(self, left: Any, *rest: Any, scale: Any = 1.0, **others: Any) -> Any:
        self.given = {"left": left, "scale": scale, **others, **{f"rest{i}": one for i, one in enumerate(rest)}}
        return left


def hook_counts(model: nn.Module) -> dict[str, tuple[int, int]]:
    """How many hooks each module has before and behind its forward."""
    return {name: (len(one._forward_pre_hooks), len(one._forward_hooks)) for name, one in model.named_modules()}
