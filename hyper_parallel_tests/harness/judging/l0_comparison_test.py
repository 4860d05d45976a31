"""Comparing one tensor: what passes, what fails, and what the failure says."""

from __future__ import annotations

import math

import pytest
import torch

from hyper_parallel_tests.harness.judging.comparison import compare, compare_numbers, decade, full

TOLERANCE = 1e-3


def grid(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(1, 13).reshape(3, 4).to(dtype)


def changed(by: float, index: tuple[int, int] = (1, 2)) -> torch.Tensor:
    tensor = grid(torch.float64)
    tensor[index] += by
    return tensor


def test_equal_tensors_agree():
    """No difference, no problem."""
    outcome = compare(grid(), grid(), TOLERANCE)
    assert (outcome.problem, outcome.difference, outcome.ratio) == ("", 0.0, 0.0)


@pytest.mark.parametrize(("tolerances", "agrees"), [(0.9, True), (1.1, False), (-0.9, True), (-1.1, False)])
def test_the_tolerance_is_the_border(tolerances, agrees):
    """A difference passes up to the tolerance and not beyond, in either direction."""
    outcome = compare(changed(tolerances * TOLERANCE), grid(torch.float64), TOLERANCE)
    assert (outcome.problem == "") is agrees


def test_failure_names_the_worst_element():
    """The worst of several wrong elements is named, with values and ratio."""
    wrong = changed(0.5)
    wrong[0, 0] += 0.02
    outcome = compare(wrong, grid(torch.float64), TOLERANCE)
    assert (outcome.index, outcome.got, outcome.expected, outcome.outside) == ((1, 2), 7.5, 7.0, 2)
    assert outcome.describe() == "worst element [1, 2]: got 7.5, expected 7, difference 0.5 = 500 x the tolerance"


@pytest.mark.parametrize(("by", "named"), [(0.015, "1e-01"), (0.11, "1e+00"), (0.13, ""), (0.5, ""), (100.0, "")])
def test_failure_names_the_tolerance_that_would_hide_rounding(by, named):
    """Up to a hundredth of the largest value, 12, the decade is named: more than that would hide anything."""
    last = compare(changed(by), grid(torch.float64), TOLERANCE).describe().splitlines()[-1]
    hint = f"it would pass at {named}, which is no remedy: find the cause"
    assert (last == hint) if named else "would pass" not in last


def test_relative_part_counts_the_expected_element():
    """With a relative part the worst element is the one furthest beyond its own allowance."""
    wrong = changed(0.5, (2, 3))
    wrong[0, 0] += 0.25
    outcome = compare(wrong, grid(torch.float64), 0.0, relative=0.0625)
    assert (outcome.index, outcome.outside, outcome.ratio, outcome.passing) == ((0, 0), 1, 4.0, 0.1875)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["candidate", "baseline", "both"])
def test_not_finite_fails_on_either_side(bad, side):
    """NaN and Inf fail and say on which side they are, also where both sides have them."""
    got, expected = grid(), grid()
    if side != "baseline":
        got[2, 1] = bad
    if side != "candidate":
        expected[2, 1] = bad
    outcome = compare(got, expected, TOLERANCE)
    guilty = "candidate and the baseline" if side == "both" else side
    assert outcome.problem == f"1 of 12 elements are NaN or Inf in the {guilty}"
    assert (outcome.index, outcome.passing) == ((2, 1), None)


def test_shape_and_dtype_must_match():
    """Neither broadcasting nor casting hides a mismatch."""
    assert compare(torch.ones(1), torch.ones(3), TOLERANCE).problem == "shape [1], expected [3]"
    problem = compare(grid(torch.bfloat16), grid(), TOLERANCE).problem
    assert problem == "dtype torch.bfloat16, expected torch.float32"


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_integers_and_booleans_are_exact(dtype):
    """No tolerance is large enough for an integer or a boolean that is wrong."""
    right = torch.tensor([0, 1, 1]).to(dtype)
    wrong = torch.tensor([0, 1, 0]).to(dtype)
    assert compare(right, right.clone(), 10.0).problem == ""
    assert compare(wrong, right, 10.0).index == (2,)


def test_large_integers_do_not_round_to_equal():
    """int64 values that are one double are still two values."""
    outcome = compare(torch.tensor([2**53 + 1]), torch.tensor([2**53]), TOLERANCE)
    assert outcome.problem == "1 of 1 elements out of tolerance"


def test_complex_is_compared_by_parts():
    """A wrong imaginary part is out of tolerance."""
    assert compare(torch.tensor([1 + 2j]), torch.tensor([1 + 2j]), TOLERANCE).problem == ""
    assert compare(torch.tensor([1 + 3j]), torch.tensor([1 + 2j]), TOLERANCE).problem


def test_nothing_allowed_means_bitwise_values():
    """With tolerance zero the smallest difference fails and no ratio is given."""
    got = torch.nextafter(torch.tensor([1.0, 2.0]), torch.tensor(3.0))
    outcome = compare(got, torch.tensor([1.0, 2.0]), 0.0)
    assert (outcome.index, outcome.ratio, outcome.outside) == ((1,), math.inf, 2)
    assert "x the tolerance" not in outcome.describe()
    assert "it would pass at 1e-06" in outcome.describe()


def test_empty_tensors_agree_if_their_shapes_do():
    """Zero elements are compared by shape and dtype alone."""
    assert compare(torch.ones(0, 3), torch.ones(0, 3), TOLERANCE).problem == ""
    assert compare(torch.ones(0, 3), torch.ones(3, 0), TOLERANCE).problem


@pytest.mark.parametrize("factor", [2.0, 0.5, -1.0])
def test_a_common_factor_is_told(factor):
    """A wrong divisor looks like a factor between all elements, and the report says it."""
    outcome = compare(factor * grid(), grid(), TOLERANCE)
    assert outcome.scale == factor
    assert f"every element is {factor:.4g} x the expected one" in outcome.describe()


def test_no_factor_is_told_where_there_is_none():
    """A permutation has no common factor, and neither has a small error of one element."""
    assert compare(grid().flip(0), grid(), TOLERANCE).scale is None
    assert compare(changed(0.01), grid(torch.float64), TOLERANCE).scale is None


def test_numbers_compare_like_tensors():
    """Two floats are judged by the same rules, without an index."""
    assert compare_numbers(1.0005, 1.0, TOLERANCE).problem == ""
    outcome = compare_numbers(1.5, 1.0, TOLERANCE)
    assert outcome.describe().startswith("got 1.5, expected 1, difference 0.5 = 500 x the tolerance")
    assert compare_numbers(math.nan, 1.0, TOLERANCE).problem


@pytest.mark.parametrize(("value", "at"), [(1e-4, 1e-4), (1.1e-4, 1e-3), (0.9, 1.0), (7.0, 10.0), (3e-12, 1e-11)])
def test_decade_rounds_up(value, at):
    """The decade is the next power of ten from above."""
    assert f"{decade(value):.0e}" == f"{at:.0e}"


class Gathered:
    """A tensor in shards as an engine has it: gathering is the only way to its values."""

    def full_tensor(self) -> torch.Tensor:
        return torch.ones(2, requires_grad=True)


def test_full_gathers_what_is_sharded_and_copies_what_is_not():
    """A sharded tensor is gathered, and no result shares memory with a parameter that trains on."""
    assert not full(Gathered()).requires_grad
    parameter = torch.nn.Parameter(torch.zeros(2))
    copy = full(parameter)
    with torch.no_grad():
        parameter += 1
    assert copy.tolist() == [0, 0]
