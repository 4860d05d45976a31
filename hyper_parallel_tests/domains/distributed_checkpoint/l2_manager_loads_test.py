"""What the manager loads: all of it or a part, in place and exactly, or nothing."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.distributed_checkpoint.managed import (
    assert_holds,
    empty_state,
    filled_folder,
    state_of,
)
from hyper_parallel_tests.harness import assert_equal, contract


@contract("CK-2-03")
@pytest.mark.parametrize("room", [[9, 9, 9, 9, 9], []], ids=["longer", "shorter"])
def test_list_of_another_length(engine, world, room):
    """A list is loaded as it was saved, whatever the length of the one in its place."""
    with filled_folder(engine, world) as (manager, _):
        manager.save(1, {"position": {"seen": [1, 2, 3]}, "t": torch.ones(2)})
        state = {"position": {"seen": list(room)}, "t": torch.zeros(2)}
        manager.load(state)
        assert state["position"] == {"seen": [1, 2, 3]}


@contract("CK-2-03")
def test_part_of_a_checkpoint(engine, world):
    """Who asks for a part gets that part alone."""
    with filled_folder(engine, world, 10) as (manager, _):
        state = {"model": empty_state(engine, world)["model"]}
        assert manager.load(state) == 10
        assert set(state) == {"model"}
        assert_equal(state["model"], state_of(engine, world, 10)["model"])


OTHERS = {
    "key": ("scale", torch.zeros(1)),
    "shape": ("bias", torch.zeros(6)),
    "dtype": ("bias", torch.zeros(5, dtype=torch.float64)),
    "kind": ("bias", 5),
}


@contract("CK-2-03")
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_does_not_fit(engine, world, other):
    """A key that is not there, or of another shape, dtype or kind, is an error with its name, and nothing is loaded."""
    name, value = other
    with filled_folder(engine, world, 10) as (manager, _):
        state = empty_state(engine, world)
        state["model"][name] = value
        with pytest.raises(engine.CheckpointError, match=rf"model\.{name}"):
            manager.load(state)
        expected = empty_state(engine, world)
        assert_equal(state["optimizer"], expected["optimizer"])
        assert_equal(state["model"]["weight"], expected["model"]["weight"])
        assert state["position"] == expected["position"]


@contract("CK-2-03")
def test_plain_load_reads_it(engine, world):
    """What the manager has saved is an ordinary distributed checkpoint."""
    with filled_folder(engine, world, 10) as (manager, _):
        state = empty_state(engine, world)
        engine.load(state, checkpoint_id=manager.path(10))
        assert_holds(engine, world, state, 10)


@contract("CK-2-03")
def test_objects_with_a_state(engine, world):
    """An object with `state_dict` and `load_state_dict` is saved by the one and loaded by the other."""
    layer, other = (torch.nn.Linear(3, 2).to(world.device) for _ in range(2))
    expected = {name: one.detach().clone() for name, one in layer.state_dict().items()}
    for one in expected.values():
        torch.distributed.broadcast(one, 0)
    layer.load_state_dict(expected)
    with filled_folder(engine, world) as (manager, _):
        manager.save(1, {"layer": layer})
        states = {"layer": other}
        manager.load(states)
        assert states == {"layer": other}
    assert_equal(dict(other.state_dict()), expected)
