"""Loading engines, and what they owe to the port."""

from __future__ import annotations

import importlib
import inspect
import sys
import types

import pytest
import torch.distributed as dist

from hyper_parallel_tests.engines import EngineUnsupported, load
from hyper_parallel_tests.engines.port import CAPABILITIES, Unsupported, members


@pytest.fixture
def poorer_engine(engine):
    """The engine with one member less, in memory: its module of meshes offers no flattening."""
    mesh = importlib.import_module(f"hyper_parallel_tests.engines.{engine.name}.mesh")
    poorer = types.ModuleType(mesh.__name__)
    poorer.__dict__.update(vars(mesh), flatten_mesh=Unsupported("meshes of this engine are flat"))
    sys.modules[mesh.__name__] = poorer
    yield load(engine.name)
    sys.modules[mesh.__name__] = mesh


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_engine_offers_the_port(engine, capability):
    """Every member of a capability is there with the port's arguments, or is unsupported for a reason."""
    protocol = CAPABILITIES[capability]
    if capability not in engine.capabilities:
        with pytest.raises(EngineUnsupported, match=f"{engine.name} .* it has no {capability}"):
            getattr(engine, min(members(protocol)))
        return
    module = importlib.import_module(f"hyper_parallel_tests.engines.{engine.name}.{capability}")
    for member in sorted(members(protocol)):
        offered = getattr(module, member)
        if isinstance(offered, Unsupported):
            assert offered.reason
        elif inspect.isfunction(declared := getattr(protocol, member, None)):
            wanted = list(inspect.signature(declared).parameters.values())[1:]
            given = list(inspect.signature(offered).parameters)
            by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
            in_order = [one.name for one in wanted if one.kind not in by_name]
            assert given[: len(in_order)] == in_order, member
            assert {one.name for one in wanted} <= set(given), member


def test_members_have_one_home():
    """No two capabilities ask for a member of one name, so that engine.<member> is never ambiguous."""
    names = [member for protocol in CAPABILITIES.values() for member in members(protocol)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["no_engine", "port", "shared"])
def test_unknown_engine(engine, name):
    """What is no engine is refused, and the message lists the known ones."""
    with pytest.raises(ValueError, match=f"'{name}'.*{engine.name}") as refusal:
        load(name)
    assert name not in str(refusal.value).partition("expected")[2]


def test_unknown_member(engine):
    """A member that the port lacks is refused, and the message names near matches and what is in reach."""
    with pytest.raises(AttributeError, match=r"'init_devise_mesh'.*init_device_mesh.*Capabilities in reach: .*mesh"):
        engine.init_devise_mesh  # noqa: B018


def test_absent_capability(engine, monkeypatch):
    """An engine without a module for a capability offers none of its members; what such a module lacks is an error."""
    package = f"hyper_parallel_tests.engines.{engine.name}"
    monkeypatch.setitem(sys.modules, f"{package}.mesh", None)
    with pytest.raises(EngineUnsupported, match=f"{engine.name} does not offer flatten_mesh: it has no mesh"):
        engine.flatten_mesh  # noqa: B018


def test_broken_capability(engine, monkeypatch):
    """A module that cannot import what it needs is an error, and not a capability that the engine lacks."""

    def lacks_rings(name: str) -> None:
        raise ModuleNotFoundError("no module named rings", name="rings")

    monkeypatch.setattr(importlib, "import_module", lacks_rings)
    with pytest.raises(ModuleNotFoundError, match="rings"):
        engine.flatten_mesh  # noqa: B018


def test_unsupported_member(poorer_engine):
    """An unsupported member raises with engine, member and reason on use; the others work."""
    said = f"{poorer_engine.name} does not offer flatten_mesh: meshes of this engine are flat"
    with pytest.raises(EngineUnsupported, match=said):
        poorer_engine.flatten_mesh  # noqa: B018
    assert callable(poorer_engine.init_device_mesh)


def test_simulated_world_comes_and_goes(engine):
    """Inside a simulated world the process is the rank it was told; outside there is no group."""
    with engine.simulated_world(5, 1024):
        assert (engine.get_rank(), engine.get_world_size()) == (5, 1024)
    assert not dist.is_initialized()


def test_simulated_world_ends_with_an_error(engine):
    """An error inside a simulated world passes through, and the world is gone."""
    with pytest.raises(KeyError), engine.simulated_world(0, 4):
        engine.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))["tp"]
    assert not dist.is_initialized()


def test_simulated_worlds_nest(engine):
    """The outer world, with its groups, is back when the inner one ends."""
    with engine.simulated_world(3, 4):
        outer = engine.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with engine.simulated_world(0, 2):
            assert engine.init_device_mesh("cpu", (2,)).mesh.tolist() == [0, 1]
        assert (engine.get_rank(), engine.get_world_size()) == (3, 4)
        assert engine.get_process_group_ranks(outer["tp"].get_group()) == [2, 3]
