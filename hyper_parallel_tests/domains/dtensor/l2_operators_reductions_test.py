"""The operator matrix: reductions, and losses with their options."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.dtensor.operators.checking import check_operator
from hyper_parallel_tests.domains.dtensor.operators.losses import CLASSES, DISTANCES
from hyper_parallel_tests.domains.dtensor.operators.reductions import EXTREMES, LINEAR, MOMENTS, SCANS
from hyper_parallel_tests.domains.dtensor.operators.table import cases
from hyper_parallel_tests.harness import contract

pytestmark = pytest.mark.collectives_only


@contract("DT-2-02")
@pytest.mark.parametrize("case", cases(LINEAR + EXTREMES + MOMENTS + SCANS), ids=str)
def test_reduction(engine, world, ledger, case):
    """Result and gradients equal those of the full tensor, over the sharded dimension and others."""
    check_operator(engine, world.mesh(dp=world.size), case, ledger)


@contract("DT-2-02")
@pytest.mark.parametrize("case", cases(CLASSES + DISTANCES, first=("even", "uneven")), ids=str)
def test_loss(engine, world, ledger, case):
    """A loss is that of the full batch, with its weights, ignored targets and smoothing."""
    check_operator(engine, world.mesh(dp=world.size), case, ledger)
