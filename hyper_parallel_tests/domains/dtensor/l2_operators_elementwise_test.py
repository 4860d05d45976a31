"""The operator matrix: operators that work element by element, and those that write into their operand."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.dtensor.operators.checking import check_operator
from hyper_parallel_tests.domains.dtensor.operators.elementwise import BINARY, BROADCAST, UNARY
from hyper_parallel_tests.domains.dtensor.operators.inplace import IN_PLACE
from hyper_parallel_tests.domains.dtensor.operators.table import cases
from hyper_parallel_tests.harness import contract

pytestmark = pytest.mark.collectives_only


@contract("DT-2-02")
@pytest.mark.parametrize("case", cases(UNARY + BINARY + BROADCAST, first=("uneven", "empty")), ids=str)
def test_elementwise(engine, world, ledger, case):
    """Result and gradients equal those of the full tensors, whatever is sharded, broadcast or partial."""
    check_operator(engine, world.mesh(dp=world.size), case, ledger)


@contract("DT-2-02")
@pytest.mark.parametrize("case", cases(IN_PLACE), ids=str)
def test_in_place(engine, world, ledger, case):
    """The operand holds what the full tensor would, and its gradient flows through."""
    check_operator(engine, world.mesh(dp=world.size), case, ledger)
