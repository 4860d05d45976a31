"""Cases that hold the calculator to its contracts on all ranks."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.harness.tests.programs import calculator


@contract("DEMO-SUM")
def test_sum_of_one(world):
    assert calculator.total((5,)) == 5


@contract("DEMO-SUM")
@pytest.mark.parametrize("numbers", [calculator.NUMBERS])
def test_sum(world, numbers):
    assert calculator.total(numbers) == 6


@contract("DEMO-PRODUCT")
def test_product(world):
    assert calculator.product((2, 3, 4)) == 24
