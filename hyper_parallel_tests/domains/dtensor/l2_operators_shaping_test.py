"""The operator matrix: operators that change the shape, join, divide or move, and those that look up or write."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.dtensor.operators.checking import check_operator
from hyper_parallel_tests.domains.dtensor.operators.indexing import LOOKUPS, WRITES
from hyper_parallel_tests.domains.dtensor.operators.shaping import JOINS, MOVES, PARTS, VIEWS
from hyper_parallel_tests.domains.dtensor.operators.table import cases
from hyper_parallel_tests.harness import contract

pytestmark = pytest.mark.collectives_only


@contract("DT-2-02")
@pytest.mark.parametrize("case", cases(VIEWS, further=("even", "uneven")) + cases(JOINS + PARTS + MOVES), ids=str)
def test_shaping(engine, world, ledger, case):
    """Elements and gradients are where they are in the full tensor."""
    check_operator(engine, world.mesh(dp=world.size), case, ledger)


@contract("DT-2-02")
@pytest.mark.parametrize("case", cases(LOOKUPS + WRITES), ids=str)
def test_indexing(engine, world, ledger, case):
    """Indices point into the full tensor, forward and backward."""
    check_operator(engine, world.mesh(dp=world.size), case, ledger)
