"""Tokens in the order of their experts, and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyper_parallel_tests.domains.expert_parallel.reference import order_of
from hyper_parallel_tests.harness import assert_close, assert_equal, contract
from hyper_parallel_tests.harness.properties import PROFILE

EXPERTS, DIM = 4, 3

# (tokens, top_k) choices.
LOADS = {
    "even": [[0, 1], [2, 3], [1, 0], [3, 2]],
    "uneven": [[3, 0], [3, 1], [3, 0], [0, 3], [3, 1]],
    "empty_experts": [[2, 1], [1, 2], [2, 1]],
    "all_to_one": [[2]] * 5,
    "one_token": [[3, 0]],
    "all_experts": [[3, 1, 0, 2], [0, 1, 2, 3]],
}
each_load = pytest.mark.parametrize("load", LOADS)


def tokens(number: int) -> torch.Tensor:
    return torch.randn(number, DIM, generator=torch.Generator().manual_seed(number))


@contract("EP-0-02")
@each_load
def test_rows_are_sorted_by_expert(engine, load):
    """Rows are the tokens of the assignments by expert and then by token; counts say where each expert begins."""
    experts = torch.tensor(LOADS[load])
    given_tokens, expected = tokens(len(experts)), order_of(experts)
    rows, counts, order = engine.permute_tokens(given_tokens, experts, EXPERTS)
    assert order.tolist() == expected
    assert counts.tolist() == [int((experts == one).sum()) for one in range(EXPERTS)]
    assert_equal(rows, given_tokens[[one // experts.shape[1] for one in expected]], what="rows")


@contract("EP-0-02")
@each_load
def test_dropped_assignments_have_no_row(engine, load):
    """Neither rows nor counts have what is dropped, and the rest keeps its order."""
    experts = torch.tensor(LOADS[load])
    kept = torch.arange(experts.numel()).view_as(experts) % 3 != 1
    rows, counts, order = engine.permute_tokens(tokens(len(experts)), experts, EXPERTS, kept=kept)
    assert order.tolist() == order_of(experts, kept)
    assert counts.tolist() == [int(((experts == one) & kept).sum()) for one in range(EXPERTS)]
    assert len(rows) == len(order)


@contract("EP-0-02")
@each_load
@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "plain"])
def test_unpermuting_sums_a_tokens_rows(engine, ledger, load, weighted):
    """A token gets the sum of its rows times their weights, each row its own."""
    experts = torch.tensor(LOADS[load])
    number, top_k = experts.shape
    rows, _, order = engine.permute_tokens(tokens(number), experts, EXPERTS)
    # Each row is made another one, so that a mix-up shows.
    rows = rows * torch.arange(1, len(rows) + 1)[:, None]
    weights = torch.rand(number, top_k, generator=torch.Generator().manual_seed(1)) + 0.5
    expected = torch.zeros(number, DIM)
    for row, assignment in zip(rows, order_of(experts), strict=True):
        token, choice = divmod(assignment, top_k)
        expected[token] += row * (weights[token, choice] if weighted else 1)
    found = engine.unpermute_tokens(rows, order, weights, weighted=weighted)
    assert_close(found, expected, ledger["ep_fp32"], what="output")


@contract("EP-0-02")
def test_there_and_back_is_the_identity(engine, ledger):
    """With weights that add up to one every token comes back as it was, and so does the gradient."""

    @PROFILE
    @given(st.integers(0, 9), st.integers(1, EXPERTS), st.integers(0, 1000))
    def holds(number, top_k, seed):
        source = torch.Generator().manual_seed(seed)
        experts = torch.rand(number, EXPERTS, generator=source).argsort(1)[:, :top_k]
        given_tokens = tokens(number).requires_grad_()
        rows, counts, order = engine.permute_tokens(given_tokens, experts, EXPERTS)
        assert int(counts.sum()) == number * top_k == len(rows)
        back = engine.unpermute_tokens(rows, order, torch.full((number, top_k), 1 / top_k))
        factors = torch.randn(number, DIM, generator=source)
        (back * factors).sum().backward()
        why = "there may be no token"
        assert_close(back.detach(), given_tokens.detach(), ledger["ep_fp32"], what="tokens", zero_because=why)
        assert_close(given_tokens.grad, factors, ledger["ep_fp32"], what="gradient", zero_because=why)

    holds()


@contract("EP-0-02")
def test_token_without_rows_is_zero(engine):
    """A token of which every assignment was dropped counts as zeros."""
    experts, kept = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[False, False], [True, True]])
    rows, _, order = engine.permute_tokens(tokens(2), experts, EXPERTS, kept=kept)
    found = engine.unpermute_tokens(rows, order, torch.ones(2, 2))
    assert_equal(found[0], torch.zeros(DIM), what="dropped token")


@contract("EP-0-02")
def test_low_precision_rows_are_weighted_in_full(engine):
    """bfloat16 rows are weighed and summed in fp32, and rounded once."""
    experts = torch.tensor([[0, 1, 2, 3]])
    rows, _, order = engine.permute_tokens(torch.full((1, DIM), 1.0, dtype=torch.bfloat16), experts, EXPERTS)
    found = engine.unpermute_tokens(rows, order, torch.tensor([[1.0, 0.003, 0.003, 0.003]]))
    assert_equal(found, torch.full((1, DIM), 1.009).to(torch.bfloat16), what="output")


@contract("EP-0-02")
def test_expert_that_is_not_there(engine):
    """An assignment to an expert behind the last one is refused, and both numbers are named."""
    with pytest.raises(ValueError, match=rf"\b{EXPERTS}\b.*\b{EXPERTS}\b"):
        engine.permute_tokens(tokens(2), torch.tensor([[0, 1], [2, EXPERTS]]), EXPERTS)
