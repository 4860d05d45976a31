"""Checkpoints turned into files of PyTorch and of safetensors and back, by a process without ranks."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hyper_parallel_tests.domains.distributed_checkpoint.damage import RunsCode
from hyper_parallel_tests.domains.distributed_checkpoint.exported import INDEX, divided, read_plainly, whole_model
from hyper_parallel_tests.harness import assert_equal, contract, jobs

CARDS = 2
ROWS = {"embedding.weight": 0, "layers.0.weight": 1, "norm.weight": 2}
MORE = {"step": 7, "name": "run", "nested": {"rates": [0.1, 0.2], "tensor": torch.arange(4)}}


def saved_by_ranks(world: Any, folder: Path) -> None:
    """Saves a model, divided, and values beside it."""
    model = divided(world.engine, world, whole_model(), ROWS)
    world.engine.save({"model": model} | MORE, checkpoint_id=folder)


def empty_model(world: Any) -> dict[str, Any]:
    return {name: torch.zeros_like(one) for name, one in divided(world.engine, world, whole_model(), ROWS).items()}


def loaded_by_ranks(world: Any, folder: Path, key: str | None = "model") -> dict[str, torch.Tensor]:
    """Loads the model, divided; gives it whole."""
    state = empty_model(world)
    world.engine.load({key: state} if key else state, checkpoint_id=folder)
    return {name: one.full_tensor() if name in ROWS else one for name, one in state.items()}


def alone(world: Any, member: str, *args: Any) -> None:
    """Calls a member in a process without a process group."""
    dist.destroy_process_group()
    getattr(world.engine, member)(*args)


@contract("CK-2-04")
def test_into_one_file(world, tmp_path):
    """A checkpoint of two ranks becomes one file, which PyTorch reads without running code, with all values."""
    jobs.run(world, saved_by_ranks, tmp_path / "dcp", cards=CARDS)
    jobs.run(world, alone, "dcp_to_torch_save", tmp_path / "dcp", tmp_path / "one.pt", cards=1)
    found = torch.load(tmp_path / "one.pt", weights_only=True)
    assert_equal(found["model"], whole_model())
    assert_equal(found["nested"].pop("tensor"), torch.arange(4))
    assert found["nested"] == {"rates": [0.1, 0.2]}
    assert (found["step"], found["name"], set(found)) == (7, "run", {"model", *MORE})


@contract("CK-2-04")
def test_out_of_one_file(world, tmp_path):
    """A file of PyTorch becomes a checkpoint that two ranks load, each its part."""
    torch.save({"model": whole_model()}, tmp_path / "one.pt")
    jobs.run(world, alone, "torch_save_to_dcp", tmp_path / "one.pt", tmp_path / "dcp", cards=1)
    for found in jobs.run(world, loaded_by_ranks, tmp_path / "dcp", cards=CARDS):
        assert_equal(found, whole_model())


@contract("CK-2-04")
def test_one_file_runs_no_code(world, tmp_path):
    """A file that would run code when it is unpickled is refused, and does not."""
    torch.save({"value": RunsCode(tmp_path / "code was run")}, tmp_path / "one.pt")
    [ended] = jobs.watch(world, alone, "torch_save_to_dcp", tmp_path / "one.pt", tmp_path / "dcp", cards=1)
    assert not (tmp_path / "code was run").exists()
    assert pickle.UnpicklingError.__name__ in ended.error


@contract("CK-2-04")
@pytest.mark.parametrize("max_file_bytes", [None, 200], ids=["one_file", "several_files"])
def test_into_safetensors(world, tmp_path, max_file_bytes):
    """The tensors of a checkpoint become files that the plain library reads, names joined by dots."""
    jobs.run(world, saved_by_tensors, tmp_path / "dcp", cards=CARDS)
    jobs.run(world, converted, tmp_path / "dcp", tmp_path / "out", {"max_file_bytes": max_file_bytes}, cards=1)
    found = read_plainly(tmp_path / "out")
    assert_equal(found["tensors"], {f"model.{name}": one for name, one in whole_model().items()})
    assert len(set(found["file"].values())) == (1 if max_file_bytes is None else 4)
    assert found["index"]["weight_map"] == found["file"]


def saved_by_tensors(world: Any, folder: Path) -> None:
    """Saves a model, divided, and what is no tensor beside it."""
    model = divided(world.engine, world, whole_model(), ROWS)
    world.engine.save({"model": model, "step": 7}, checkpoint_id=folder)


def converted(world: Any, source: Path, target: Path, options: dict[str, Any]) -> None:
    dist.destroy_process_group()
    world.engine.dcp_to_safetensors(source, target, **options)


@contract("CK-2-04")
def test_into_safetensors_of_another_dtype(world, tmp_path):
    """Tensors are rounded to the dtype that is asked for."""
    jobs.run(world, saved_by_tensors, tmp_path / "dcp", cards=CARDS)
    jobs.run(world, converted, tmp_path / "dcp", tmp_path / "out", {"dtype": torch.float16}, cards=1)
    expected = {f"model.{name}": one.to(torch.float16) for name, one in whole_model().items()}
    assert_equal(read_plainly(tmp_path / "out")["tensors"], expected)


@contract("CK-2-04")
def test_out_of_safetensors(world, tmp_path):
    """Files of safetensors, written by the plain library alone, become a checkpoint that two ranks load."""
    write_plainly(tmp_path / "out")
    jobs.run(world, alone, "safetensors_to_dcp", tmp_path / "out", tmp_path / "dcp", cards=1)
    for found in jobs.run(world, loaded_by_ranks, tmp_path / "dcp", None, cards=CARDS):
        assert_equal(found, whole_model())


@contract("CK-2-04")
def test_plainly_written_files(world, tmp_path):
    """Such files are imported by two ranks, each its part."""
    write_plainly(tmp_path / "out")
    for found in jobs.run(world, imported, tmp_path / "out", cards=CARDS):
        assert_equal(found, whole_model())


def imported(world: Any, folder: Path) -> dict[str, torch.Tensor]:
    """Imports the model, divided; gives it whole."""
    state = empty_model(world)
    world.engine.import_safetensors(state, folder)
    return {name: one.full_tensor() if name in ROWS else one for name, one in state.items()}


def write_plainly(folder: Path) -> None:
    """Two files and an index, as other programs write them."""
    from safetensors.torch import save_file

    folder.mkdir()
    state = {name: one.clone() for name, one in whole_model().items()}
    names = sorted(state)
    files = {name: f"model-0000{1 + place % 2}-of-00002.safetensors" for place, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: state[name] for name in names if files[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))


@contract("CK-2-04")
@pytest.mark.parametrize("name", ["../other.safetensors", "/other.safetensors"], ids=["beside", "absolute"])
def test_index_names_another_folder(world, tmp_path, name):
    """An index that names a file outside of its folder is an error that has the name."""
    write_plainly(tmp_path / "out")
    content = (tmp_path / "out" / INDEX).read_text()
    (tmp_path / "out" / INDEX).write_text(content.replace("model-00002-of-00002.safetensors", name))
    [ended] = jobs.watch(world, alone, "safetensors_to_dcp", tmp_path / "out", tmp_path / "dcp", cards=1)
    assert "ValueError" in ended.error
    assert name in ended.error
