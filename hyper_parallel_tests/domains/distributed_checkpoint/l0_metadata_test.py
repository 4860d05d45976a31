"""What a checkpoint says of itself, on one rank."""

from __future__ import annotations

import math

import pytest
import torch

from hyper_parallel_tests.domains.distributed_checkpoint.plans import Placed, numbered, plan_save
from hyper_parallel_tests.harness import assert_equal, contract

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.bool]
SIZES = {"scalar": (), "row": (3,), "cube": (2, 3, 2), "empty": (0, 3)}


def told(metadata, key):
    """What metadata tell of a tensor, as values that can be compared."""
    one = metadata.state_dict_metadata[key]
    chunks = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in one.chunks]
    return tuple(one.size), str(one.properties.dtype), chunks


@contract("CK-0-02")
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_tensor_is_described(engine, tmp_path, size, dtype):
    """The metadata read back tell the key, size, dtype and parts of each tensor."""
    engine.save({"model.t": torch.ones(size, dtype=dtype)}, checkpoint_id=tmp_path)
    metadata = engine.read_checkpoint_metadata(tmp_path)
    assert list(metadata.state_dict_metadata) == ["model.t"]
    assert told(metadata, "model.t") == (size, str(dtype), [((0,) * len(size), size)])


@contract("CK-0-02")
def test_keys_of_nested_dicts(engine, tmp_path):
    """Keys of dicts within dicts, and indices of lists with tensors, are joined by dots."""
    engine.save({"a": {"b": {"c": torch.ones(2)}, "l": [torch.ones(3), 5]}, "n": 1}, checkpoint_id=tmp_path)
    metadata = engine.read_checkpoint_metadata(tmp_path)
    assert set(metadata.state_dict_metadata) == {"a.b.c", "a.l.0", "a.l.1", "n"}
    assert told(metadata, "a.l.0") == ((3,), "torch.float32", [((0,), (3,))])


@contract("CK-0-02")
def test_object_is_no_tensor(engine, tmp_path):
    """Of what is no tensor the metadata tell the key, and neither size nor parts."""
    engine.save({"step": 3, "t": torch.ones(2)}, checkpoint_id=tmp_path)
    metadata = engine.read_checkpoint_metadata(tmp_path)
    assert not hasattr(metadata.state_dict_metadata["step"], "size")
    assert not hasattr(metadata.state_dict_metadata["step"], "chunks")


@contract("CK-0-02")
def test_save_returns_what_is_read(engine, tmp_path):
    """The metadata that a save returns and those that are read back are the same."""
    returned = engine.save({"a": torch.ones(2, 3), "b": torch.ones(0), "n": "x"}, checkpoint_id=tmp_path)
    read = engine.read_checkpoint_metadata(tmp_path)
    assert set(returned.state_dict_metadata) == set(read.state_dict_metadata)
    assert [told(returned, key) for key in "ab"] == [told(read, key) for key in "ab"]
    assert returned.version == read.version


@contract("CK-0-02")
@pytest.mark.parametrize("rows", [8, 7, 2], ids=["even", "uneven", "empty_parts"])
def test_parts_survive_writing_and_reading(engine, tmp_path, rows):
    """Where each rank's part lies is in the metadata, and stays there when they are written and read."""
    made = plan_save(engine, (4,), {"t": Placed(numbered(rows, 2), (0,))}).metadata
    engine.write_checkpoint_metadata(made, tmp_path)
    made.version = (whole := engine.save({"n": 1}, checkpoint_id=tmp_path / "whole")).version
    engine.write_checkpoint_metadata(made, tmp_path)
    read = engine.read_checkpoint_metadata(tmp_path)
    assert read.version == whole.version
    size, dtype, chunks = told(read, "t")
    assert (size, dtype) == ((rows, 2), "torch.float32")
    step = math.ceil(rows / 4)
    parts = [((begin, 0), (min(step, rows - begin), 2)) for begin in range(0, rows, step)]
    assert [chunk for chunk in chunks if math.prod(chunk[1])] == parts


@contract("CK-0-02")
def test_version_is_kept(engine, tmp_path):
    """Each checkpoint has a version of its format, the same for all, also when it replaces another."""
    versions = set()
    for folder in ("first", "second", "first"):
        engine.save({"n": folder}, checkpoint_id=tmp_path / folder)
        versions.add(engine.read_checkpoint_metadata(tmp_path / folder).version)
    assert len(versions) == 1
    assert isinstance(versions.pop(), str)


@contract("CK-0-02")
@pytest.mark.parametrize(
    "version", ["99.0.0", "1.99.0", "0.1", "", None], ids=["newer", "near", "older", "empty", "none"]
)
def test_unknown_version_is_an_error(engine, tmp_path, version):
    """A checkpoint of an unknown format version is refused, the error has the version, and nothing is filled in."""
    metadata = engine.save({"t": torch.ones(2), "n": 1}, checkpoint_id=tmp_path)
    metadata.version = version
    engine.write_checkpoint_metadata(metadata, tmp_path)
    state = {"t": torch.zeros(2), "n": 0}
    with pytest.raises(engine.CheckpointException, match=f"version {version}"):
        engine.load(state, checkpoint_id=tmp_path)
    assert state["n"] == 0
    assert_equal(state["t"], torch.zeros(2))


@contract("CK-0-02")
def test_unknown_version_is_not_read(engine, tmp_path):
    """Metadata of an unknown format version are refused by whoever reads them alone, too."""
    metadata = engine.save({"n": 1}, checkpoint_id=tmp_path)
    metadata.version = "99.0.0"
    engine.write_checkpoint_metadata(metadata, tmp_path)
    with pytest.raises(ValueError, match=r"99\.0\.0"):
        engine.read_checkpoint_metadata(tmp_path)


@contract("CK-0-02")
def test_no_metadata_is_an_error(engine, tmp_path):
    """A folder without metadata is no checkpoint, and the error has the folder."""
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        engine.read_checkpoint_metadata(tmp_path)
    with pytest.raises(engine.CheckpointException, match=str(tmp_path)):
        engine.load({"n": 1}, checkpoint_id=tmp_path)
