"""Names in a wrapped module's state_dict."""

from __future__ import annotations

import pytest
from torch import nn

from hyper_parallel_tests.domains.fully_shard.setting import either_fusion
from hyper_parallel_tests.harness import contract


@pytest.fixture
def mesh(engine):
    """One dimension of two ranks, seen from rank 1; nothing communicates."""
    with engine.simulated_world(rank=1, world_size=2):
        yield engine.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))


def network() -> nn.Sequential:
    """Two linear layers with one shared weight around a layer with buffers."""
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    return model


@contract("FS-0-04")
@either_fusion
def test_keys_equal_the_unwrapped_modules(engine, mesh, comm_fusion):
    """Wrapping adds no prefix, drops no buffer and keeps both names of a shared parameter."""
    model = engine.fully_shard(network(), mesh=mesh, comm_fusion=comm_fusion)
    assert list(model.state_dict()) == list(network().state_dict())


@contract("FS-0-04")
def test_keys_are_the_same_while_gathered(engine, mesh):
    """A state_dict taken between unshard and reshard has the same keys."""
    model = engine.fully_shard(network(), mesh=mesh)
    model.unshard()
    assert list(model.state_dict()) == list(network().state_dict())


@contract("FS-0-04")
@pytest.mark.parametrize(
    "special", [None, "ignored_params", "replicate_params"], ids=["all_sharded", "ignored", "replicated"]
)
def test_keys_are_the_same_with_nested_calls_and_special_parameters(engine, mesh, special):
    """Nested calls, ignored and replicated parameters leave no trace in the keys."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 6))
    expected = list(model.state_dict())
    options = {special: {layer.bias for layer in model}} if special else {}
    for module in (model[0], model):
        engine.fully_shard(module, mesh=mesh, **options)
    assert list(model.state_dict()) == expected
