"""Placements that cannot be: each is refused at once, and the message says what is wrong."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.harness import contract

REFUSAL = (ValueError, IndexError, RuntimeError, AssertionError, TypeError)
SIZE = (6, 4)

WAYS = {
    "distribute_tensor": lambda engine, mesh, placements: engine.distribute_tensor(torch.ones(SIZE), mesh, placements),
    "from_local": lambda engine, mesh, placements: engine.from_local(torch.ones(SIZE), mesh, placements),
    "redistribute": lambda engine, mesh, placements: engine.redistribute(
        engine.distribute_tensor(torch.ones(SIZE), mesh, [engine.Replicate(), engine.Replicate()]), mesh, placements
    ),
    "factory": lambda engine, mesh, placements: engine.ones(SIZE, device_mesh=mesh, placements=placements),
}


def refused(engine, way: str, placements: list, match: str) -> None:
    """The way refuses these placements on a mesh of 2 x 2, in words that match."""
    with engine.simulated_world(1, 4):
        mesh = engine.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with pytest.raises(REFUSAL, match=match):
            WAYS[way](engine, mesh, placements)


@contract("DT-0-05")
@pytest.mark.parametrize("way", WAYS)
def test_dimension_out_of_range(engine, way):
    """A tensor of two dimensions cannot be divided on dimension 2; the message has the number."""
    refused(engine, way, [engine.Shard(2), engine.Replicate()], r"\b2\b")


@contract("DT-0-05")
@pytest.mark.parametrize("way", WAYS)
def test_negative_dimension_out_of_range(engine, way):
    """A tensor of two dimensions cannot be divided on dimension -3; the message has the number as it was given."""
    refused(engine, way, [engine.Replicate(), engine.Shard(-3)], "-3")


@contract("DT-0-05")
@pytest.mark.parametrize("way", WAYS)
def test_wrong_number_of_placements(engine, way):
    """A mesh of two dimensions takes neither three placements nor one; the message speaks of the mesh."""
    refused(engine, way, [engine.Shard(0), engine.Replicate(), engine.Replicate()], "mesh")
    refused(engine, way, [engine.Shard(0)], "mesh")


@contract("DT-0-05")
@pytest.mark.parametrize("way", ["distribute_tensor", "factory"])
def test_something_else_than_a_placement(engine, way):
    """A name is no placement; the message has it."""
    refused(engine, way, ["dp", engine.Replicate()], "dp")


@contract("DT-0-05")
def test_terms_of_unknown_reduction(engine):
    """A reduction that there is not is refused when it is to be done, at the latest; the message has its name."""
    with engine.simulated_world(1, 4):
        mesh = engine.init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        with pytest.raises(REFUSAL, match="median"):
            engine.from_local(torch.ones(SIZE), mesh, [engine.Partial("median")]).full_tensor()


@contract("DT-0-05")
def test_terms_of_different_reductions(engine):
    """Terms to be summed along one mesh dimension and maximised along another have no value; both are named."""
    with engine.simulated_world(1, 4):
        mesh = engine.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with pytest.raises(REFUSAL, match="(?s)sum.*max|max.*sum"):
            engine.from_local(torch.ones(SIZE), mesh, [engine.Partial("sum"), engine.Partial("max")]).full_tensor()


@contract("DT-0-05")
def test_partial_parameter(engine):
    """A parameter in terms is refused by name: no rank holds a value of it."""

    def in_terms(name, module, mesh):
        term = engine.distribute_tensor(module.weight.detach(), mesh, [engine.Partial()])
        module.register_parameter("weight", nn.Parameter(term))

    with engine.simulated_world(1, 4):
        mesh = engine.init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        with pytest.raises(REFUSAL, match=r"(?i)partial"):
            engine.distribute_module(nn.Linear(4, 4, bias=False), mesh, in_terms)


@contract("DT-0-05")
def test_mesh_of_an_earlier_world(engine):
    """A mesh whose world is over cannot gather a tensor; the message speaks of the group or the rank that is gone."""
    with engine.simulated_world(1, 4):
        mesh = engine.init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        tensor = engine.distribute_tensor(torch.ones(SIZE), mesh, [engine.Shard(0)])
    with engine.simulated_world(1, 2), pytest.raises(REFUSAL, match=r"(?i)group|\brank\b"):
        tensor.full_tensor()


@contract("DT-0-05")
def test_redistribution_to_terms(engine):
    """Making terms of a tensor is refused by name, or keeps its value: the terms of the ranks reduce to it."""
    with engine.simulated_world(1, 4):
        mesh = engine.init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        tensor = engine.distribute_tensor(torch.ones(SIZE), mesh, [engine.Replicate()])
        try:
            term = engine.redistribute(tensor, mesh, [engine.Partial()]).to_local()
        except REFUSAL as error:
            assert "P(" in str(error) or "Partial" in str(error)  # noqa: PT017 - either way is right
        else:
            assert not torch.equal(term, torch.ones(SIZE)), "each of four ranks has the whole, which sums to four times"
