"""Loading engines, and what they owe to the port."""

from __future__ import annotations

import importlib
import inspect
import sys
import types

import pytest

from hyper_parallel_tests.engines import EngineUnsupported, load
from hyper_parallel_tests.engines.port import CAPABILITIES, Unsupported, members


@pytest.fixture
def stand_in():
    """An engine of one member less, in memory: its module of meshes offers no flattening."""
    package = "hyper_parallel_tests.engines.torch_native"
    mesh = importlib.import_module(f"{package}.mesh")
    poorer = types.ModuleType(mesh.__name__)
    poorer.__dict__.update(vars(mesh), flatten_mesh=Unsupported("meshes of this engine are flat"))
    sys.modules[mesh.__name__] = poorer
    yield load("torch_native")
    sys.modules[mesh.__name__] = mesh


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_engine_offers_the_port(engine, capability):
    """Every member of a capability is there with the port's arguments, or is unsupported for a reason."""
    protocol = CAPABILITIES[capability]
    module = importlib.import_module(f"hyper_parallel_tests.engines.{engine.name}.{capability}")
    for member in sorted(members(protocol)):
        offered = getattr(module, member)
        if isinstance(offered, Unsupported):
            assert engine.name != "torch_native", f"the default engine must offer {member}"
            assert offered.reason
        elif inspect.isfunction(declared := getattr(protocol, member, None)):
            wanted = list(inspect.signature(declared).parameters)[1:]
            given = inspect.signature(offered).parameters
            assert list(given)[: len(wanted)] == wanted, member


def test_members_have_one_home():
    """No two capabilities ask for a member of one name, so that engine.<member> is never ambiguous."""
    names = [member for protocol in CAPABILITIES.values() for member in members(protocol)]
    assert len(set(names)) == len(names)


def test_unknown_engine():
    """An unknown engine is refused, and the message lists the known ones."""
    with pytest.raises(ValueError, match="'torch_natif'.*torch_native"):
        load("torch_natif")


def test_unknown_member(engine):
    """A member that the port lacks is refused, and the message names near matches and what is in reach."""
    with pytest.raises(AttributeError, match=r"'init_devise_mesh'.*init_device_mesh.*Capabilities in reach: .*mesh"):
        engine.init_devise_mesh  # noqa: B018


def test_unsupported_member(stand_in):
    """An unsupported member raises with engine, member and reason on use; the others work."""
    with pytest.raises(
        EngineUnsupported, match="torch_native does not offer flatten_mesh: meshes of this engine are flat"
    ):
        stand_in.flatten_mesh  # noqa: B018
    assert callable(stand_in.init_device_mesh)


def test_simulated_world_comes_and_goes(engine):
    """Inside a simulated world the process is the rank it was told; outside there is no group."""
    with engine.simulated_world(5, 1024):
        assert (engine.get_rank(), engine.get_world_size()) == (5, 1024)
    assert not engine.is_initialized()


def test_simulated_world_ends_with_an_error(engine):
    """An error inside a simulated world passes through, and the world is gone."""
    with pytest.raises(KeyError), engine.simulated_world(0, 4):
        engine.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))["tp"]
    assert not engine.is_initialized()


def test_simulated_worlds_nest(engine):
    """The outer world, with its groups, is back when the inner one ends."""
    with engine.simulated_world(3, 4):
        outer = engine.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with engine.simulated_world(0, 2):
            assert engine.init_device_mesh("cpu", (2,)).mesh.tolist() == [0, 1]
        assert (engine.get_rank(), engine.get_world_size()) == (3, 4)
        assert engine.get_process_group_ranks(outer["tp"].get_group()) == [2, 3]
