"""The operator matrix: products, attention, and operators that normalise over a dimension."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.dtensor.operators.checking import check_operator
from hyper_parallel_tests.domains.dtensor.operators.normalization import NORMALIZATION
from hyper_parallel_tests.domains.dtensor.operators.products import ATTENTION, PRODUCTS
from hyper_parallel_tests.domains.dtensor.operators.table import cases
from hyper_parallel_tests.harness import contract

pytestmark = pytest.mark.collectives_only


@contract("DT-2-02")
@pytest.mark.parametrize("case", cases(PRODUCTS + ATTENTION), ids=str)
def test_product(engine, world, ledger, case):
    """Result and gradients equal those of the full tensors, whichever of the multiplied dimensions are sharded."""
    check_operator(engine, world.mesh(dp=world.size), case, ledger)


@contract("DT-2-02")
@pytest.mark.parametrize("case", cases(NORMALIZATION), ids=str)
def test_normalization(engine, world, ledger, case):
    """The statistics are those of the full tensor, forward and backward."""
    check_operator(engine, world.mesh(dp=world.size), case, ledger)
