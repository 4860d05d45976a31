"""Single tensors and nests of them: what is close, equal or different, and what the failure says."""

from __future__ import annotations

import copy

import pytest
import torch

from hyper_parallel_tests.harness.judging.parity import VacuousComparison, assert_close, assert_differs, assert_equal
from hyper_parallel_tests.harness.judging.tolerances import ledger

ROW = ledger["fsdp_1d_fp32"]


def test_assert_close_names_the_part():
    """Of a nest of tensors the part that differs is named by its path."""
    expected = {"a": torch.ones(2), "b": [torch.ones(2), torch.ones(3)]}
    wrong = {"a": torch.ones(2), "b": [torch.ones(2), torch.tensor([1.0, 1.0, 2.0])]}
    assert_close(expected, copy.deepcopy(expected), ledger["exact"])
    with pytest.raises(AssertionError) as caught:
        assert_close(wrong, expected, ROW, what="state")
    assert str(caught.value).splitlines()[0] == f"state differs with {ROW!r}, judged"
    assert "state[b][1]: 1 of 3 elements out of tolerance" in str(caught.value)
    assert "worst element [2]: got 2, expected 1" in str(caught.value)


def test_assert_close_uses_the_rows_relative_part():
    """Magnitude counts where the row says so, and nowhere else."""
    large, off = torch.tensor([1e6]), torch.tensor([1e6 + 0.5])
    assert_close(off, large, ledger["collectives_fp32"])
    with pytest.raises(AssertionError):
        assert_close(off, large, ROW)


@pytest.mark.parametrize("nothing", [torch.zeros(3), torch.ones(0), {}, [], 0.0], ids=repr)
def test_assert_close_refuses_to_compare_nothing(nothing):
    """Zeros and emptiness on both sides are an error unless said to be right."""
    with pytest.raises(VacuousComparison):
        assert_close(nothing, nothing, ROW)
    assert_close(nothing, nothing, ROW, zero_because="this is the point")


def test_assert_close_takes_numbers_and_keeps_integers_exact():
    """Plain numbers compare too; an integer is never nearly right."""
    assert_close(1.0, 1.0, ROW)
    assert_close(3, 3, ROW)
    with pytest.raises(AssertionError):
        assert_close(3, 4, ledger["collectives_bf16"])


def test_assert_equal_knows_no_tolerance():
    """Bits are compared, zeros and empty tensors too, and the report names the element."""
    assert_equal([torch.zeros(2), torch.empty(0, 3)], [torch.zeros(2), torch.empty(0, 3)])
    wrong = torch.zeros(2, 2)
    wrong[1, 0] = 1e-30
    with pytest.raises(AssertionError, match=r"message differs(.|\n)*\[1, 0\]"):
        assert_equal(wrong, torch.zeros(2, 2), what="message")
    with pytest.raises(AssertionError, match="shape"):
        assert_equal(torch.zeros(0, 3), torch.zeros(0, 2), what="message")


def test_assert_differs_wants_every_tensor_to_differ():
    """One tensor that agrees is named."""
    one, two = {"a": torch.ones(2), "b": torch.ones(2)}, {"a": torch.ones(2), "b": torch.full((2,), 2.0)}
    assert_differs(one["b"], two["b"], ROW)
    with pytest.raises(AssertionError, match=r"grads\[a\] must differ but agrees"):
        assert_differs(one, two, ROW, what="grads")
