"""State that moves between layouts of two ranks."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.optimizer.layouts import ON_TWO
from hyper_parallel_tests.domains.optimizer.moving import assert_goes_on
from hyper_parallel_tests.harness import contract

PAIRS = [("fsdp", "tp"), ("tp", "fsdp"), ("fsdp", "fsdp")]


@contract("OP-2-01")
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=map("-to-".join, PAIRS))
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "divided"])
def test_goes_on(engine, world, ledger, first, second, whole):
    """Saved in one layout and loaded in another, training goes on as on a single card."""
    assert_goes_on(engine, world, ledger, ON_TWO[first], ON_TWO[second], whole=whole)
