"""The operator matrix on four ranks: a row of each kind."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.dtensor.operators.checking import check_operator
from hyper_parallel_tests.domains.dtensor.operators.matrix import ON_FOUR
from hyper_parallel_tests.domains.dtensor.operators.table import grid_cases, wide_cases
from hyper_parallel_tests.harness import contract

pytestmark = pytest.mark.collectives_only


@contract("DT-2-02")
@pytest.mark.parametrize("case", wide_cases(ON_FOUR), ids=str)
def test_shards_of_three_sizes(engine, world, ledger, case):
    """Result and gradients equal those of the full tensors where one shard is smaller than others and one is empty."""
    check_operator(engine, world.mesh(dp=world.size), case, ledger)


@contract("DT-2-02")
@pytest.mark.parametrize("case", grid_cases(ON_FOUR), ids=str)
def test_on_a_grid(engine, world, ledger, case):
    """Result and gradients equal those of the full tensors, each mesh dimension with a placing of its own."""
    check_operator(engine, world.mesh(dp=2, tp=2), case, ledger)
