"""What the default engine owes to the net beyond what every engine does."""

from __future__ import annotations

import importlib

import pytest

from hyper_parallel_tests.engines.port import CAPABILITIES, Unsupported, members


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_default_engine_offers_everything(engine, capability):
    """No member of the port is unsupported, so that every contract is judged on the default engine."""
    module = importlib.import_module(f"hyper_parallel_tests.engines.{engine.name}.{capability}")
    offers = {member: getattr(module, member) for member in sorted(members(CAPABILITIES[capability]))}
    assert not [member for member, offered in offers.items() if isinstance(offered, Unsupported)]
