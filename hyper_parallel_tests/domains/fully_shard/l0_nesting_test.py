"""The order in which modules are wrapped and run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.harness import contract


@pytest.fixture
def mesh(engine):
    """One dimension of two ranks, seen from rank 0; nothing communicates."""
    with engine.simulated_world(rank=0, world_size=2):
        yield engine.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


@contract("FS-0-05")
def test_wrapping_twice_is_an_error(engine, mesh):
    """A second call on the same module is refused."""
    model = engine.fully_shard(two_layers(), mesh=mesh)
    with pytest.raises(Exception, match="already been applied"):
        engine.fully_shard(model, mesh=mesh)


@contract("FS-0-05")
def test_wrapping_a_child_after_its_parent_is_an_error(engine, mesh):
    """The parent's call already manages the child's parameters, so a later call on the child is refused."""
    model = engine.fully_shard(two_layers(), mesh=mesh)
    with pytest.raises(Exception, match="mesh|managed"):
        engine.fully_shard(model[0], mesh=mesh)


@contract("FS-0-05")
@pytest.mark.parametrize(
    "container", [nn.ModuleList, lambda layers: nn.ModuleDict({"a": layers[0]})], ids=["list", "dict"]
)
def test_container_without_forward_is_an_error(engine, mesh, container):
    """A module that never runs could never gather: it is refused when wrapped."""
    with pytest.raises(ValueError, match="forward"):
        engine.fully_shard(container([nn.Linear(4, 4)]), mesh=mesh)


@contract("FS-0-05")
@pytest.mark.parametrize("modules", [[], [3], None], ids=["empty", "number", "none"])
def test_anything_but_modules_is_an_error(engine, mesh, modules):
    """An empty list or an entry that is no module is refused."""
    with pytest.raises((TypeError, ValueError), match="module"):
        engine.fully_shard(modules, mesh=mesh)


@contract("FS-0-05")
def test_module_of_a_list_inside_another_is_an_error(engine, mesh):
    """A list names each module once and no module together with its own child."""
    model = two_layers()
    with pytest.raises(ValueError, match="inside, another"):
        engine.fully_shard([model, model[0]], mesh=mesh)


@contract("FS-0-05")
def test_three_dimensional_mesh_is_an_error(engine):
    """A mesh has one dimension, or two for replicas of shards."""
    with engine.simulated_world(rank=0, world_size=8):
        mesh = engine.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("a", "b", "c"))
        with pytest.raises(ValueError, match="1D (or|and) 2D"):
            engine.fully_shard(two_layers(), mesh=mesh)


@contract("FS-0-05")
def test_child_run_before_its_root_is_an_error_at_the_root(engine, mesh):
    """The first module to run becomes the root, so running a wrapped ancestor of it later is refused."""
    model = two_layers()
    engine.fully_shard(model[0], mesh=mesh)
    engine.fully_shard(model, mesh=mesh)
    inputs = torch.zeros(1, 4)
    model[0](inputs)
    with pytest.raises(RuntimeError, match="root module first"):
        model(inputs)


@contract("FS-0-05")
def test_child_runs_alone_once_its_root_has_run(engine, mesh):
    """After the root's first forward any wrapped child may be called by itself."""
    model = two_layers()
    engine.fully_shard(model[0], mesh=mesh)
    engine.fully_shard(model, mesh=mesh)
    inputs = torch.zeros(1, 4)
    model(inputs)
    assert model[0](inputs).shape == (1, 4)
