"""Whatever version of the library is at hand, each member of the port is offered or says why it is not."""

from __future__ import annotations

import contextlib
import importlib

import pytest

from hyper_parallel_tests.engines.port import CAPABILITIES, EngineUnsupported, Unsupported, members
from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers


@pytest.mark.parametrize("capability", sorted(CAPABILITIES))
def test_each_member_is_offered_or_says_why(engine, capability):
    """A capability can be imported, and each of its members is there: something to call or a reason in words."""
    module = importlib.import_module(f"hyper_parallel_tests.engines.hyper_parallel.{capability}")
    for member in sorted(members(CAPABILITIES[capability])):
        found = getattr(module, member)
        assert found.reason if isinstance(found, Unsupported) else callable(found), f"{member} is {found!r}"


def test_mesh_has_each_member_or_refuses(engine):
    """A mesh answers for each of its members: with what it has, or that this version of the library lacks it."""
    with engine.simulated_world(0, 4):
        mesh = engine.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert mesh.mesh_dim_names == ("dp", "tp")
        for part in (mesh, mesh["tp"], engine.root_mesh(mesh["tp"])):
            for member in members(DeviceMeshMembers):
                with contextlib.suppress(EngineUnsupported):
                    getattr(part, member)
