"""The operator matrix: parts carried through further operators."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.dtensor.operators.checking import check_operator
from hyper_parallel_tests.domains.dtensor.operators.partials import CARRIED, COMBINED
from hyper_parallel_tests.domains.dtensor.operators.table import cases
from hyper_parallel_tests.harness import contract

pytestmark = pytest.mark.collectives_only


@contract("DT-2-02")
@pytest.mark.parametrize("case", cases(CARRIED + COMBINED), ids=str)
def test_partial(engine, world, ledger, case):
    """What does not commute with the reduction comes after it."""
    check_operator(engine, world.mesh(dp=world.size), case, ledger)
