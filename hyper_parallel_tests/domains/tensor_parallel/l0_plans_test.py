"""Which modules a plan reaches, and what a plan must not ask for."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.models.mlp import mlp

RANKS = 2


@pytest.fixture
def mesh(engine):
    with engine.simulated_world(0, RANKS):
        yield engine.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))


def divided(model: nn.Module) -> list[str]:
    """Names of the parameters that are distributed."""
    return [name for name, one in model.named_parameters() if hasattr(one, "placements")]


def nest() -> nn.Module:
    """Two blocks of three layers, and a head."""

    def block() -> nn.ModuleDict:
        return nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in ("up", "upper", "down")})

    return nn.ModuleDict({"blocks": nn.ModuleList([block(), block()]), "head": nn.Linear(4, 4, bias=False)})


PATHS = {
    "one": ("blocks.0.up", ["blocks.0.up"]),
    "level": ("blocks.*.down", ["blocks.0.down", "blocks.1.down"]),
    "part_of_a_name": ("blocks.1.up*", ["blocks.1.up", "blocks.1.upper"]),
    "choice": ("blocks.[0].down", ["blocks.0.down"]),
    "two_levels": (
        "*.*.up*",
        ["blocks.0.up", "blocks.0.upper", "blocks.1.up", "blocks.1.upper"],
    ),
    "top": ("head", ["head"]),
}


@contract("TP-0-02")
@pytest.mark.parametrize(("path", "expected"), PATHS.values(), ids=PATHS)
def test_path_reaches_its_modules_and_no_other(engine, mesh, path, expected):
    """A wildcard stands for any part of one level of the name."""
    model = nest()
    with warnings.catch_warnings():
        # Where "head" has no level below, PyTorch tells that too.
        warnings.simplefilter("ignore")
        assert engine.parallelize_module(model, mesh, {path: engine.ColwiseParallel()}) is model
    assert divided(model) == [f"{name}.weight" for name in expected]


@contract("TP-0-02")
def test_each_match_once(engine, mesh):
    """A module under two names is divided once, so that its output is laid out once."""
    layer = nn.Linear(4, 8, bias=False)
    model = nn.ModuleDict({"first": layer, "second": layer})
    engine.parallelize_module(model, mesh, {"*": engine.ColwiseParallel(use_local_output=False)})
    assert tuple(layer.weight.shape) == (8, 4)
    assert tuple(layer.weight.to_local().shape) == (8 // RANKS, 4)
    assert tuple(layer(torch.ones(3, 4)).shape) == (3, 8)


@contract("TP-0-02")
def test_two_paths_to_one_module_are_refused(engine, mesh):
    """Whoever asks for two styles of one module is told, and does not get both one after the other."""
    plan = {"layers.0": engine.ColwiseParallel(), "layers.*": engine.ColwiseParallel()}
    with pytest.raises(RuntimeError, match="once"):
        engine.parallelize_module(mlp(8, 2), mesh, plan)


@contract("TP-0-02")
@pytest.mark.parametrize("path", ["layer.0", "layers.7", "layers.0.missing", "layers.x*"])
def test_path_without_a_match_is_named(engine, mesh, path):
    """A warning names the path or what is left of it, and the rest of the plan is carried out."""
    model, divide = mlp(8, 2, bias=False), engine.parallelize_module
    plan = {path: engine.ColwiseParallel(), "layers.1": engine.RowwiseParallel()}
    with pytest.warns(UserWarning, match=path.split(".")[-1].replace("*", "[*]")):
        divide(model, mesh, plan)
    assert divided(model) == ["layers.1.weight"]


@contract("TP-0-02")
def test_tied_parameters_stay_tied(engine, mesh):
    """A parameter under two names in two styles that divide it alike is one afterwards."""
    model = nn.ModuleDict({"embedding": nn.Embedding(8, 4), "output": nn.Linear(4, 8, bias=False)})
    model["output"].weight = model["embedding"].weight
    plan = {"embedding": engine.RowwiseParallel(input_layouts=engine.Replicate()), "output": engine.ColwiseParallel()}
    engine.parallelize_module(model, mesh, plan)
    assert model["output"].weight is model["embedding"].weight


def styles(engine: Any) -> dict[str, tuple[nn.Module, Any]]:
    whole = engine.Replicate()
    return {
        "column": (nn.Linear(4, 4), engine.ColwiseParallel()),
        "row": (nn.Linear(4, 4), engine.RowwiseParallel()),
        "embedding": (nn.Embedding(4, 4), engine.RowwiseParallel(input_layouts=whole)),
        "sequence": (nn.LayerNorm(4), engine.SequenceParallel()),
    }


@contract("TP-0-02")
@pytest.mark.parametrize("style", ["column", "row", "embedding", "sequence"])
def test_mesh_of_two_dimensions_is_refused(engine, style):
    """The message speaks of the mesh and its dimensions."""
    with engine.simulated_world(0, 4):
        mesh = engine.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        module, asked = styles(engine)[style]
        with pytest.raises(ValueError, match="mesh.*2"):
            engine.parallelize_module(module, mesh, asked)


@contract("TP-0-02")
@pytest.mark.parametrize("style", ["column", "row", "embedding", "sequence"])
def test_one_dimension_of_a_larger_mesh(engine, style):
    """A slice of a larger mesh will do, and parameters are divided over the slice."""
    with engine.simulated_world(0, 4):
        mesh = engine.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        module, asked = styles(engine)[style]
        engine.parallelize_module(module, mesh["tp"], asked)
        assert {one.device_mesh.size() for one in module.parameters()} == {2}


@contract("TP-0-02")
def test_modules_that_a_style_does_not_know(engine, mesh):
    """Neither style divides anything but linear layers and embeddings, and says which these are."""
    for style in (engine.ColwiseParallel(), engine.RowwiseParallel()):
        with pytest.raises(NotImplementedError, match=r"Linear.*Embedding"):
            engine.parallelize_module(nn.Conv1d(4, 4, 1), mesh, style)


@contract("TP-0-02")
@pytest.mark.parametrize("plan", ["layers.0", ["layers.0"], 3], ids=["text", "list", "number"])
def test_plan_of_another_kind(engine, mesh, plan):
    """The message names what was given."""
    with pytest.raises(TypeError, match=type(plan).__name__):
        engine.parallelize_module(mlp(8, 2), mesh, plan)


@contract("TP-0-02")
def test_parameters_on_the_meta_device_stay_there(engine, mesh):
    """They are divided in shape alone."""
    with torch.device("meta"):
        layer = nn.Linear(4, 8)
    engine.parallelize_module(layer, mesh, engine.ColwiseParallel())
    assert layer.weight.device.type == "meta"
    assert tuple(layer.weight.to_local().shape) == (8 // RANKS, 4)
