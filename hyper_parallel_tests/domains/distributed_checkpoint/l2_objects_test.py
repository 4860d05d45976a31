"""What is no tensor, and what has tensors in it, saved and loaded on the same ranks."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from enum import Enum

import pytest
import torch

from hyper_parallel_tests.domains.distributed_checkpoint.setting import shared_folder
from hyper_parallel_tests.harness import assert_equal, contract

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Position:
    """Where a run is in its data."""

    epoch: int
    seen: list[int]


class Phase(Enum):
    """What a run is at."""

    WARMUP = "warmup"
    DECAY = "decay"


OBJECTS = {
    "none": None,
    "true": True,
    "int": 10**30,
    "float": 0.1,
    "minus_infinity": -math.inf,
    "text": "naïve\n",
    "bytes": b"\x00\xff",
    "list": [1, 2.5, "three", None],
    "nested_list": [[1, [2]], [], [3]],
    "empty_list": [],
    "tuple": (1, ("a", 2.5)),
    "named_tuple": Pair(1, "b"),
    "set": {1, 2, 3},
    "dataclass": Position(2, [4, 5]),
    "enum": Phase.DECAY,
    "dtype": torch.bfloat16,
    "size": torch.Size([2, 3]),
}


def there_and_back(engine, world, state, room):
    """Saves a state dict, loads into another one, and gives that."""
    with shared_folder(world) as folder:
        engine.save(state, checkpoint_id=folder)
        engine.load(room, checkpoint_id=folder)
    return room


@contract("CK-2-01")
def test_objects(engine, world):
    """Objects come back equal and of the same type, whatever was in their place."""
    loaded = there_and_back(engine, world, dict(OBJECTS), dict.fromkeys(OBJECTS, "room"))
    assert loaded == OBJECTS
    assert {key: type(one) for key, one in loaded.items()} == {key: type(one) for key, one in OBJECTS.items()}


@contract("CK-2-01")
def test_objects_deep_in_dicts(engine, world):
    """Objects come back in the dicts within dicts that they were in, and these stay what they are."""
    inner = OrderedDict(a=None, b=None)
    room = {"run": {"state": inner, "name": None}}
    loaded = there_and_back(engine, world, {"run": {"state": OrderedDict(a=1, b=(2,)), "name": "x"}}, room)
    assert loaded == {"run": {"state": OrderedDict(a=1, b=(2,)), "name": "x"}}
    assert loaded["run"]["state"] is inner


@contract("CK-2-01")
def test_lists_with_tensors(engine, world):
    """Lists with tensors and dicts in them are filled in place, each at its index."""
    tensors = [torch.zeros(2), torch.zeros(3)]
    room = {"l": [tensors[0], {"t": tensors[1], "n": 0}, 0, ["", torch.zeros(1)]]}
    state = {"l": [torch.ones(2), {"t": torch.full((3,), 2.0), "n": 5}, 6, ["x", torch.full((1,), 3.0)]]}
    loaded = there_and_back(engine, world, state, room)["l"]
    assert loaded[0] is tensors[0]
    assert loaded[1]["t"] is tensors[1]
    assert_equal([*tensors, loaded[3][1]], [torch.ones(2), torch.full((3,), 2.0), torch.full((1,), 3.0)])
    assert (loaded[1]["n"], loaded[2], loaded[3][0]) == (5, 6, "x")


@contract("CK-2-01")
@pytest.mark.parametrize(
    "make", [tuple, lambda two: Pair(*two), lambda two: Position(*two)], ids=["tuple", "named", "dataclass"]
)
def test_tensors_in_other_objects(engine, world, make):
    """A tuple or dataclass with a tensor comes back whole, of the same type."""
    loaded = there_and_back(engine, world, {"o": make([3, torch.arange(4)])}, {"o": make([0, torch.zeros(4)])})["o"]
    assert type(loaded) is type(make([0, 0]))
    number, tensor = loaded if isinstance(loaded, tuple) else (loaded.epoch, loaded.seen)
    assert number == 3
    assert_equal(tensor, torch.arange(4))


@contract("CK-2-01")
def test_tensors_under_numbers(engine, world):
    """Tensors in a dict whose keys are numbers come back under their keys."""
    room = {"state": {0: {"t": torch.zeros(2)}, 11: {"t": torch.zeros(2)}}}
    state = {"state": {0: {"t": torch.ones(2)}, 11: {"t": torch.full((2,), 2.0)}}}
    loaded = there_and_back(engine, world, state, room)
    assert set(loaded["state"]) == {0, 11}
    assert_equal([loaded["state"][key]["t"] for key in (0, 11)], [torch.ones(2), torch.full((2,), 2.0)])


@contract("CK-2-01")
def test_objects_under_numbers(engine, world):
    """Objects in a dict whose keys are numbers come back under their keys."""
    room = {"state": {0: {"step": 0}, 11: {"step": 0}}}
    loaded = there_and_back(engine, world, {"state": {0: {"step": 3}, 11: {"step": 4}}}, room)
    assert loaded == {"state": {0: {"step": 3}, 11: {"step": 4}}}


@contract("CK-2-01")
def test_each_ranks_own(engine, world):
    """What each rank has under a key of its own comes back to it, tensors and objects."""
    key, number = f"rank {world.rank}", world.rank + 1
    state = {"random": {key: torch.full((3,), number)}, "position": {key: (number, "x")}}
    room = {"random": {key: torch.zeros(3, dtype=torch.int64)}, "position": {key: None}}
    loaded = there_and_back(engine, world, state, room)
    assert_equal(loaded["random"][key], torch.full((3,), number))
    assert loaded["position"] == {key: (number, "x")}


@contract("CK-2-01")
def test_keys_of_all_kinds(engine, world):
    """Keys with dots, slashes, blanks, dots alone and letters of any script come back."""
    keys = ["a.b", "a/b", "../a", " ", ".", "ключ", "rank 0", "a" * 100]
    state = {key: torch.full((2,), float(index)) for index, key in enumerate(keys)}
    loaded = there_and_back(engine, world, state, {key: torch.zeros(2) for key in keys})
    assert_equal(loaded, state)
