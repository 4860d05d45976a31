"""Restore on two ranks that divide otherwise, or a mesh of two dimensions, of what any layout has saved."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.distributed_checkpoint.layouts import LAYOUTS, Saves, carried
from hyper_parallel_tests.harness import contract

INTO = ["tp_2", "pp_2", "fsdp_tp_4"]


@pytest.fixture(scope="module")
def saves(tmp_path_factory):
    """Checkpoints of all layouts."""
    return Saves(tmp_path_factory.mktemp("saves"))


@contract("CK-2-02")
@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("saved", LAYOUTS)
def test_restore(world, saves, saved, into):
    """Parameters and optimizer state of one layout, loaded by another launch in another, are equal bit for bit."""
    carried(world, saves, saved, into)
