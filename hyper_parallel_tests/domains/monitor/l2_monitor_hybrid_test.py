"""The precision monitor on meshes of two dimensions: copies of shards, shards of shards, shards of stages."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.monitor.checks import check_bits, check_told
from hyper_parallel_tests.domains.monitor.setting import run_of
from hyper_parallel_tests.harness import contract

LAYOUTS = {"HSDP": {"dp": 2, "fsdp": 2}, "FSDPxTP": {"fsdp": 2, "tp": 2}, "PPxFSDP": {"pp": 2, "fsdp": 2}}
each_layout = pytest.mark.parametrize("degrees", LAYOUTS.values(), ids=LAYOUTS)


@contract("MO-2-01")
@each_layout
def test_told_is_so(engine, world, ledger, degrees):
    """Global norm, local norms and local loss are those of one card and those counted by hand."""
    check_told(engine, world, ledger, degrees)


@contract("MO-2-01")
@each_layout
def test_changes_no_bit(engine, world, ledger, degrees):
    """Training with the monitor is training without it."""
    check_bits(engine, world, ledger, degrees)


@contract("MO-2-01")
def test_mesh_of_a_stage_is_not_enough(engine, world):
    """Where parameters lie on a part of the ranks, and the mesh of all was not given, that is said."""
    run = run_of(engine, world, LAYOUTS["PPxFSDP"])
    with pytest.raises(ValueError, match="mesh of 2 ranks, and 4 train"):
        engine.TrainingStateMonitor(run.model).record()
