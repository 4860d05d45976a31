"""Which parameters a fully_shard call manages, and in which groups they communicate."""

from __future__ import annotations

import pytest
from torch import nn

from hyper_parallel_tests.domains.fully_shard.setting import either_fusion
from hyper_parallel_tests.harness import contract


@pytest.fixture
def mesh(engine):
    """One dimension of four ranks, seen from rank 1; nothing communicates."""
    with engine.simulated_world(rank=1, world_size=4):
        yield engine.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


def managed_names(engine, module: nn.Module, unit: str = "") -> list[str]:
    return [parameter.name for parameter in engine.managed_parameters(module) if parameter.unit == unit]


@contract("FS-0-01")
def test_one_call_manages_all_parameters_in_order(engine, mesh):
    """A call on the whole module manages each of its parameters once, in named_parameters order."""
    model = two_layers()
    expected = [name for name, _ in model.named_parameters()]
    engine.fully_shard(model, mesh=mesh)
    assert managed_names(engine, model) == expected


@contract("FS-0-01")
def test_outer_call_manages_what_inner_calls_left(engine, mesh):
    """Parameters of a wrapped child belong to the child's call, the rest to the parent's."""
    model = two_layers()
    engine.fully_shard(model[0], mesh=mesh)
    engine.fully_shard(model, mesh=mesh)
    assert managed_names(engine, model, unit="0") == ["0.weight", "0.bias"]
    assert managed_names(engine, model, unit="") == ["2.weight", "2.bias"]


@contract("FS-0-01")
@pytest.mark.parametrize("width", [8, 6], ids=["even", "odd"])
def test_shared_parameter_is_managed_once(engine, mesh, width):
    """A parameter under two names is managed once, and both names hold one object, sharded or full."""
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False))
    model[1].weight = model[0].weight
    engine.fully_shard(model, mesh=mesh)
    assert managed_names(engine, model) == ["0.weight"]
    assert model[1].weight is model[0].weight
    model.unshard()
    assert model[1].weight is model[0].weight
    model.reshard()
    assert model[1].weight is model[0].weight


@contract("FS-0-01")
def test_ignored_parameters_are_not_managed(engine, mesh):
    """An ignored parameter stays the object it was, and no group holds it."""
    model = two_layers()
    ignored = model[0].weight
    engine.fully_shard(model, mesh=mesh, ignored_params={ignored})
    assert managed_names(engine, model) == ["0.bias", "2.weight", "2.bias"]
    assert model[0].weight is ignored


@contract("FS-0-01")
@either_fusion
def test_replicated_parameters_are_managed_whole(engine, mesh, comm_fusion):
    """A replicated parameter is managed, but whole and in a group of its own kind."""
    model = two_layers()
    engine.fully_shard(model, mesh=mesh, replicate_params={model[0].bias}, comm_fusion=comm_fusion)
    parameters = {parameter.name: parameter for parameter in engine.managed_parameters(model)}
    bias = parameters.pop("0.bias")
    assert bias.shard_dim is None
    assert bias.shard.shape == bias.full_shape
    assert bias.group not in {other.group for other in parameters.values()}
    assert all(other.shard_dim == 0 for other in parameters.values())


@contract("FS-0-01")
@pytest.mark.parametrize(
    ("comm_fusion", "groups"), [(False, [0, 1, 2, 3]), (True, [0, 0, 0, 0])], ids=["single", "fused"]
)
def test_groups_follow_comm_fusion(engine, mesh, comm_fusion, groups):
    """Parameters communicate one by one in their order, or with comm_fusion all together."""
    model = engine.fully_shard(two_layers(), mesh=mesh, comm_fusion=comm_fusion)
    assert [parameter.group for parameter in engine.managed_parameters(model)] == groups


@contract("FS-0-01")
def test_list_manages_each_module(engine, mesh):
    """Modules of a list that share nothing are units of their own; those that share a parameter are one."""
    apart = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])
    engine.fully_shard(list(apart), mesh=mesh)
    assert [parameter.unit for parameter in engine.managed_parameters(apart)] == ["0", "1"]

    tied = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])
    tied[1].weight = tied[0].weight
    engine.fully_shard(list(tied), mesh=mesh)
    assert managed_names(engine, tied, unit="0") == ["0.weight"]
    assert managed_names(engine, tied[1]) == ["weight"]
