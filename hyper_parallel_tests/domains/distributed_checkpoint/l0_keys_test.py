"""Keys that are on one side only, and values that do not fit, on one rank."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.harness import assert_equal, contract

SAVED = {"model.weight": torch.ones(2, 3), "model.bias": torch.ones(2), "step": 7}


@pytest.fixture
def checkpoint(engine, tmp_path):
    """A folder with `SAVED`."""
    engine.save(SAVED, checkpoint_id=tmp_path)
    return tmp_path


def asked(**changes):
    """Room for what was saved, changed in the keys of the model."""
    room = {"model.weight": torch.zeros(2, 3), "model.bias": torch.zeros(2), "step": 0}
    return room | {f"model.{key}": value for key, value in changes.items()}


def tensors(state):
    return {key: one for key, one in state.items() if isinstance(one, torch.Tensor)}


def assert_untouched(state, other):
    assert_equal(tensors(state), tensors(other))
    assert state["step"] == 0


@contract("CK-0-03")
@pytest.mark.parametrize("extra", [torch.zeros(1), 5], ids=["tensor", "object"])
def test_missing_key_is_an_error(engine, checkpoint, extra):
    """A key that the checkpoint lacks is an error with its name, and nothing is filled in."""
    state, other = asked(scale=extra), asked(scale=extra)
    with pytest.raises(engine.CheckpointException, match=r"model\.scale"):
        engine.load(state, checkpoint_id=checkpoint)
    assert_untouched(state, other)


@contract("CK-0-03")
def test_partial_load_leaves_missing_keys(engine, checkpoint):
    """Where a partial load is allowed, missing keys stay as they are and the others are filled in."""
    state = asked(scale=torch.full((1,), 3.0), kind="mine")
    engine.load(state, checkpoint_id=checkpoint, planner=engine.StandardLoadPlanner(allow_partial_load=True))
    assert_equal(tensors(state), tensors(SAVED) | {"model.scale": torch.full((1,), 3.0)})
    assert (state["step"], state["model.kind"]) == (7, "mine")


@contract("CK-0-03")
@pytest.mark.parametrize("partial", [False, True], ids=["strict", "partial"])
def test_keys_not_asked_for_stay_out(engine, checkpoint, partial):
    """Keys of the checkpoint that nobody asks for are no error, and come into no dict."""
    state = {"model.bias": torch.zeros(2)}
    engine.load(state, checkpoint_id=checkpoint, planner=engine.StandardLoadPlanner(allow_partial_load=partial))
    assert_equal(state, {"model.bias": torch.ones(2)})


@contract("CK-0-03")
@pytest.mark.parametrize("partial", [False, True], ids=["strict", "partial"])
@pytest.mark.parametrize(
    "size", [(3, 2), (2, 2), (3, 3), (6,), (1, 2, 3)], ids=["transposed", "smaller", "larger", "flat", "more_dims"]
)
def test_other_shape_is_an_error(engine, checkpoint, size, partial):
    """A tensor of another shape is an error with its key, also in a partial load, and nothing is filled in."""
    state, other = asked(weight=torch.zeros(size)), asked(weight=torch.zeros(size))
    with pytest.raises(engine.CheckpointException, match=r"model\.weight"):
        engine.load(state, checkpoint_id=checkpoint, planner=engine.StandardLoadPlanner(allow_partial_load=partial))
    assert_untouched(state, other)


@contract("CK-0-03")
@pytest.mark.parametrize("partial", [False, True], ids=["strict", "partial"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32], ids=["narrower", "wider", "integer"])
def test_other_dtype_is_an_error(engine, checkpoint, dtype, partial):
    """A tensor of another dtype is an error with its key and both dtypes, and nothing is filled in."""
    state, other = asked(bias=torch.zeros(2, dtype=dtype)), asked(bias=torch.zeros(2, dtype=dtype))
    with pytest.raises(engine.CheckpointException, match=rf"(?s)model\.bias.*float32.*{dtype}"):
        engine.load(state, checkpoint_id=checkpoint, planner=engine.StandardLoadPlanner(allow_partial_load=partial))
    assert_untouched(state, other)


@contract("CK-0-03")
def test_object_in_place_of_a_tensor_is_an_error(engine, checkpoint):
    """A key that is a tensor in the checkpoint and asked for as an object is an error with its name."""
    with pytest.raises(engine.CheckpointException, match=r"model\.bias"):
        engine.load(asked(bias=5), checkpoint_id=checkpoint)


@contract("CK-0-03")
def test_tensor_in_place_of_an_object_is_an_error(engine, checkpoint):
    """A key that is an object in the checkpoint and asked for as a tensor is an error with its name."""
    state = asked() | {"step": torch.zeros(())}
    with pytest.raises(engine.CheckpointException, match="step"):
        engine.load(state, checkpoint_id=checkpoint)
    assert_equal(state["step"], torch.zeros(()))


@contract("CK-0-03")
def test_first_of_several_is_named(engine, checkpoint):
    """Where several keys do not fit, the error has at least the first one's name."""
    with pytest.raises(engine.CheckpointException, match=r"model\.(weight|bias)"):
        engine.load(asked(weight=torch.zeros(1), bias=torch.zeros(1)), checkpoint_id=checkpoint)


@contract("CK-0-03")
def test_two_values_of_one_name_are_an_error(engine, tmp_path):
    """Two keys that become one name when they are joined by dots cannot be saved, and the error has the name."""
    with pytest.raises((ValueError, engine.CheckpointException), match=r"a\.b"):
        engine.save({"a": {"b": 1}, "a.b": 2}, checkpoint_id=tmp_path)
