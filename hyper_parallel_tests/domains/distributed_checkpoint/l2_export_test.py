"""Models as folders of safetensors: written by ranks, read without them, and read back by ranks."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.distributed_checkpoint.exported import DTYPES, divided, read_plainly, whole_model
from hyper_parallel_tests.domains.distributed_checkpoint.setting import bits, shared_folder
from hyper_parallel_tests.harness import assert_equal, contract
from hyper_parallel_tests.models.seeding import generator

DIVISIONS = {
    "whole": {},
    "rows": {"embedding.weight": 0, "layers.0.weight": 0, "layers.0.bias": 0, "norm.weight": 0, "layers.1.weight": 0},
    "columns": {"embedding.weight": 1, "layers.0.weight": 1, "norm.weight": 1, "layers.1.weight": 1},
    "last": {"norm.weight": 2, "layers.0.weight": 1},
}
# Rounded to float16 first, it ends at 1 in bfloat16; rounded once, at the next number above.
ROUNDED_TWICE = 1 + 2**-8 + 2**-13

each_division = pytest.mark.parametrize("dims", DIVISIONS.values(), ids=DIVISIONS)


def zeros_like(state):
    return {name: torch.zeros_like(one) for name, one in state.items()}


@contract("CK-2-04")
@each_division
@pytest.mark.parametrize("max_file_bytes", [None, 200], ids=["one_file", "several_files"])
def test_read_without_ranks(engine, world, dims, max_file_bytes):
    """However ranks divide them, the plain library reads each tensor whole, under its name, and finds nothing else."""
    with shared_folder(world) as folder:
        state = divided(engine, world, whole_model(), dims)
        engine.export_safetensors(state, folder / "out", max_file_bytes=max_file_bytes)
        found = read_plainly(folder / "out")
    assert_equal(found["tensors"], whole_model())
    assert found["others"] == []
    assert len(set(found["file"].values())) == (1 if max_file_bytes is None else 4)


@contract("CK-2-04")
@pytest.mark.parametrize("max_file_bytes", [None, 1, 200, 10**6], ids=str)
def test_index(engine, world, max_file_bytes):
    """The index has each tensor's file and the bytes of all; files are numbered, and none is larger than allowed."""
    with shared_folder(world) as folder:
        state = divided(engine, world, whole_model(), DIVISIONS["rows"])
        engine.export_safetensors(state, folder / "out", max_file_bytes=max_file_bytes)
        found = read_plainly(folder / "out")
    sizes = {name: one.numel() * one.element_size() for name, one in whole_model().items()}
    assert found["index"]["weight_map"] == found["file"]
    assert found["index"]["metadata"]["total_size"] == sum(sizes.values())
    files = sorted(set(found["file"].values()))
    assert files == [f"model-{number + 1:05}-of-{len(files):05}.safetensors" for number in range(len(files))]
    for file in files if max_file_bytes is not None else []:
        inside = [sizes[name] for name, its in found["file"].items() if its == file and sizes[name]]
        assert sum(inside) <= max_file_bytes or len(inside) == 1


@contract("CK-2-04")
@each_division
@pytest.mark.parametrize("saved", ["whole", "rows"])
def test_round_trip(engine, world, saved, dims):
    """What was exported in one division is read back in another, in place and bit for bit."""
    with shared_folder(world) as folder:
        engine.export_safetensors(divided(engine, world, whole_model(), DIVISIONS[saved]), folder / "out")
        expected = divided(engine, world, whole_model(), dims)
        state = zeros_like(expected)
        before = {name: id(one) for name, one in state.items()}
        engine.import_safetensors(state, folder / "out")
    assert {name: id(one) for name, one in state.items()} == before
    assert_equal(state, expected)


@contract("CK-2-04")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_dtypes(engine, world, dtype):
    """Tensors of any dtype are in the files as they are, and come back."""
    values = (torch.randn(9, generator=generator(0)) * 3).to(dtype)
    with shared_folder(world) as folder:
        engine.export_safetensors({"one": values.to(world.device)}, folder / "out")
        found = read_plainly(folder / "out")["tensors"]["one"]
        state = {"one": torch.zeros_like(values, device=world.device)}
        engine.import_safetensors(state, folder / "out")
    assert found.dtype == dtype
    assert_equal(bits(found), bits(values), what="in the file")
    assert_equal(bits(state["one"]).cpu(), bits(values), what="read back")


@contract("CK-2-04")
def test_number_without_dimensions(engine, world):
    """A tensor without dimensions has its value in the file, and comes back."""
    with shared_folder(world) as folder:
        engine.export_safetensors({"one": torch.tensor(3.5, device=world.device)}, folder / "out")
        found = read_plainly(folder / "out")["tensors"]["one"]
        state = {"one": torch.tensor(0.0, device=world.device)}
        engine.import_safetensors(state, folder / "out")
    assert_equal([found, state["one"].cpu()], [torch.tensor(3.5)] * 2)


@contract("CK-2-04")
def test_strided_tensor(engine, world):
    """A tensor that does not lie row by row is written as what it is."""
    values = torch.randn(4, 6, generator=generator(0)).to(world.device).t()
    with shared_folder(world) as folder:
        engine.export_safetensors({"one": values}, folder / "out")
        assert_equal(read_plainly(folder / "out")["tensors"]["one"], values.cpu())


@contract("CK-2-04")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_exported_dtype(engine, world, dtype):
    """Floating-point numbers are rounded once to the dtype of the export, and the model's own stay."""
    whole = whole_model() | {"rounding": torch.tensor([ROUNDED_TWICE, 1 / 3, -0.0, 65504.0])}
    state = divided(engine, world, whole, DIVISIONS["rows"])
    with shared_folder(world) as folder:
        engine.export_safetensors(state, folder / "out", dtype=dtype)
        found = read_plainly(folder / "out")["tensors"]
    assert_equal(found, {name: one.to(dtype) for name, one in whole.items()})
    assert_equal(state, divided(engine, world, whole, DIVISIONS["rows"]), what="the model's own")


NAMES = {"embedding.weight": "model.embed_tokens.weight", "layers.0.weight": "model.layers.0.mlp.weight"}


@contract("CK-2-04")
def test_names(engine, world):
    """Names that others use stand in the files, and are found again."""
    with shared_folder(world) as folder:
        expected = divided(engine, world, whole_model(), DIVISIONS["rows"])
        engine.export_safetensors(expected, folder / "out", names=NAMES)
        found = read_plainly(folder / "out")
        state = zeros_like(expected)
        engine.import_safetensors(state, folder / "out", names=NAMES)
    assert set(found["tensors"]) == {NAMES.get(name, name) for name in whole_model()}
    assert_equal(state, expected)


@contract("CK-2-04")
def test_two_tensors_of_one_name(engine, world):
    """Two tensors that would have one name are refused by that name, and nothing is written."""
    with shared_folder(world) as folder:
        with pytest.raises(ValueError, match=r"layers\.0\.bias"):
            engine.export_safetensors(whole_model(), folder / "out", names={"none.weight": "layers.0.bias"})
        assert not (folder / "out").exists()


@contract("CK-2-04")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"other": torch.zeros(2)}, "other"),
        ({"layers.0.bias": torch.zeros(6)}, r"layers\.0\.bias"),
        ({"layers.0.bias": torch.zeros(5, dtype=torch.float16)}, r"layers\.0\.bias"),
    ],
    ids=["name", "shape", "dtype"],
)
def test_what_is_not_there(engine, world, asked, said):
    """A name that is not in the files, or has another shape or dtype there, is an error that has the name."""
    with shared_folder(world) as folder:
        engine.export_safetensors(whole_model(), folder / "out")
        with pytest.raises(engine.CheckpointException, match=said):
            engine.import_safetensors(dict(asked), folder / "out")
