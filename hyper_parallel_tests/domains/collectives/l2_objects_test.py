"""Collectives of Python objects: nested state comes back as it was sent, on the world and on part of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.domains.collectives.groups import Part, part_of_the_world
from hyper_parallel_tests.harness import World, assert_equal, contract


@pytest.fixture(params=["world", "rows", "split"])
def part(request: pytest.FixtureRequest, engine: Any, world: World) -> Part:
    """All ranks, or this rank's group."""
    if request.param == "world":
        return Part(None, list(range(world.size)), world.rank)
    return part_of_the_world(engine, world, request.param)


@dataclass
class Progress:
    """What a user's own class may hold."""

    step: int
    best: float
    seen: set[str] = field(default_factory=set)


class Nothing:
    """Stands for an object that others ignore."""


def state(rank: int, receiver: int = 0) -> dict[str, Any]:
    """A trainer's state, another one and of another size on each rank."""
    return {
        "progress": Progress(10 * rank + receiver, float("-inf"), {f"shard-{one}" for one in range(rank)}),
        "schedule": [(one, 0.1 / (one + 1), None) for one in range(1000 * rank)],
        "generator": bytes(range(256)) * (rank + 1),
        "names": {1: "eins", (2, "b"): "zwei", None: {"deep": [[[rank]]], "big": 2**70 + rank}},
        "moments": {0: torch.arange(5.0) * (rank + 1), 1: torch.zeros(0, 3, dtype=torch.bfloat16)},
    }


def assert_same(found: Any, expected: dict[str, Any]) -> None:
    """All but the tensors by their own equality, and those bit by bit."""
    assert isinstance(found, dict), found
    assert list(found) == list(expected)
    for name, value in expected.items():
        if name == "moments":
            assert_equal(tensors(found[name]), tensors(value), what=name)
        else:
            assert found[name] == value, name
            assert type(found[name]) is type(value)


def tensors(moments: dict[int, Tensor]) -> dict[str, Tensor]:
    return {str(key): value for key, value in moments.items()}


from_each_end = pytest.mark.parametrize("root", ["first", "last"])


def root_of(part: Part, root: str) -> int:
    return part.ranks[0 if root == "first" else -1]


@contract("COL-2-03")
def test_all_gather(engine, world, part):
    """Every member has the members' objects, in the group's order."""
    found = engine.all_gather_object(state(world.rank), group=part.group)
    assert len(found) == len(part.ranks)
    for one, rank in zip(found, part.ranks, strict=True):
        assert_same(one, state(rank))


@contract("COL-2-03")
@from_each_end
def test_broadcast(engine, world, part, root):
    """Every member has the source's object, whatever the others gave."""
    source = root_of(part, root)
    given = state(source) if world.rank == source else Nothing()
    assert_same(engine.broadcast_object(given, source, group=part.group), state(source))


@contract("COL-2-03")
@from_each_end
def test_gather(engine, world, part, root):
    """The destination has the members' objects, in the group's order, and the others nothing."""
    destination = root_of(part, root)
    found = engine.gather_object(state(world.rank), destination, group=part.group)
    if world.rank != destination:
        assert found is None
    else:
        assert len(found) == len(part.ranks)
        for one, rank in zip(found, part.ranks, strict=True):
            assert_same(one, state(rank))


@contract("COL-2-03")
@from_each_end
def test_scatter(engine, world, part, root):
    """Each member has what the source had for it."""
    source = root_of(part, root)
    given = [state(source, receiver) for receiver in part.ranks] if world.rank == source else None
    assert_same(engine.scatter_object(given, source, group=part.group), state(source, world.rank))


@contract("COL-2-03")
def test_what_came_is_the_receivers_own(engine, world):
    """Changing what came, on the source too, changes neither what was given nor what others have."""
    given = state(world.rank)
    found = engine.all_gather_object(given)
    for one in found:
        one["names"].clear()
        one["moments"][0].zero_()
    assert_same(given, state(world.rank))
    for one, rank in zip(engine.all_gather_object(given), range(world.size), strict=True):
        assert_same(one, state(rank))
