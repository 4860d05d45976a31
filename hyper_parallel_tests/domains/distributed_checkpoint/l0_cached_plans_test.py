"""Saves whose plans are kept from one to the next, on one rank."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.harness import assert_equal, contract


@pytest.fixture(autouse=True)
def _no_plan_at_first(engine):
    with engine.save_plan_cache_cleared():
        yield


def saved(engine, folder, state):
    engine.save(state, checkpoint_id=folder, planner=engine.StandardSavePlanner(enable_plan_caching=True))
    return engine.read_checkpoint_metadata(folder)


def assert_comes_back(engine, folder, state):
    """Loads tensors of a flat state dict and what is no tensor."""
    room = {key: torch.zeros_like(one) if isinstance(one, torch.Tensor) else None for key, one in state.items()}
    engine.load(room, checkpoint_id=folder)
    tensors = {key for key, one in state.items() if isinstance(one, torch.Tensor)}
    assert_equal({key: room[key] for key in tensors}, {key: state[key] for key in tensors})
    assert {key: room[key] for key in room.keys() - tensors} == {key: state[key] for key in state.keys() - tensors}


@contract("CK-0-01")
def test_same_plan_new_values(engine, tmp_path):
    """Saves of one state dict that changes its values have the values of each save."""
    state = {"t": torch.ones(2, 3), "step": 0}
    for step in range(3):
        state["t"].add_(1)
        state["step"] = step
        saved(engine, tmp_path / str(step), state)
        assert_comes_back(engine, tmp_path / str(step), state)


OTHERS = {
    "key_more": {"t": torch.full((2, 3), 2.0), "step": 1, "u": torch.full((2,), 3.0)},
    "object_more": {"t": torch.full((2, 3), 2.0), "step": 1, "name": "x"},
    "key_less": {"t": torch.full((2, 3), 2.0)},
    "key_renamed": {"u": torch.full((2, 3), 2.0), "step": 1},
    "order": {"step": 1, "t": torch.full((2, 3), 2.0)},
    "shape": {"t": torch.full((3, 3), 2.0), "step": 1},
    "kind": {"t": 4, "step": torch.ones(2)},
}


@contract("CK-0-01")
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_changed_state_dict(engine, tmp_path, other):
    """A state dict of other keys or shapes is planned anew, and so is the first one when it comes again."""
    first = {"t": torch.ones(2, 3), "step": 0}
    for turn, state in enumerate((first, other, first, other)):
        metadata = saved(engine, tmp_path / str(turn), state)
        sizes = {key: getattr(one, "size", None) for key, one in metadata.state_dict_metadata.items()}
        assert sizes == {key: getattr(one, "shape", None) for key, one in state.items()}
        assert_comes_back(engine, tmp_path / str(turn), state)


@contract("CK-0-01")
def test_changed_dtype(engine, tmp_path):
    """A tensor that is converted between two saves is saved as what it is."""
    for dtype in (torch.float32, torch.bfloat16):
        metadata = saved(engine, tmp_path / str(dtype), {"t": torch.ones(2, 3, dtype=dtype)})
        assert str(metadata.state_dict_metadata["t"].properties.dtype) == str(dtype)


@contract("CK-0-01")
def test_failed_save_leaves_no_plan(engine, tmp_path):
    """Behind a save that failed in writing, the next one is whole."""
    (tmp_path / "file").write_text("no folder")
    state = {"t": torch.ones(2), "step": 1}
    with pytest.raises(engine.CheckpointException):
        saved(engine, tmp_path / "file", state)
    saved(engine, tmp_path / "folder", state)
    assert_comes_back(engine, tmp_path / "folder", state)
