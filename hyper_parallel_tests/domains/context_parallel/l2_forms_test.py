"""The forms of one attention against each other: transfers beside the computation or not, and the three methods."""

from __future__ import annotations

from itertools import combinations

import pytest

from hyper_parallel_tests.domains.context_parallel.setting import METHODS, Case, on_one_card, on_ranks
from hyper_parallel_tests.harness import assert_bitwise_repeatable, assert_close, assert_equal, contract

CASES = {
    "plain": Case(),
    "causal_gqa_zig_zag": Case(13, 8, 4, causal=True, load_balance=True),
}

each_method = pytest.mark.parametrize("method", METHODS)
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@contract("CP-2-02")
@each_method
@each_case
def test_overlap_changes_no_bit(engine, world, ledger, method, case):
    """Transfers that go on beside the computation give the bits of those that are waited for at once."""
    overlapped = on_ranks(engine, world, case, method, overlap=True)
    assert_equal(overlapped, on_ranks(engine, world, case, method, overlap=False), what="attention")
    assert_close(overlapped, on_one_card(world, case), ledger["cp_fp32"], what="attention")


@contract("CP-2-02")
@each_case
@pytest.mark.parametrize("methods", combinations(METHODS, 2), ids="-".join)
def test_methods_agree(engine, world, ledger, methods, case):
    """Any two methods give the same output, loss and gradients."""
    one, other = (on_ranks(engine, world, case, method) for method in methods)
    assert_close(one, other, ledger["cp_fp32"], what="attention")


@contract("CP-2-02")
@each_method
def test_attention_repeats_bit_by_bit(engine, world, method):
    """The same attention again in the same process gives the same bits, with overlap too."""
    case = CASES["causal_gqa_zig_zag"]
    assert_bitwise_repeatable(lambda: on_ranks(engine, world, case, method, overlap=True))
