"""Which positions of a sequence each rank holds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyper_parallel_tests.domains.context_parallel.reference import positions_of
from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.harness.properties import PROFILE

lengths = st.integers(0, 300)
sizes = st.integers(1, 16)

either_order = pytest.mark.parametrize("load_balance", [False, True], ids=["in_order", "zig_zag"])


@contract("CP-0-01")
@either_order
def test_parts_are_a_permutation_of_the_sequence(engine, load_balance):
    """Whatever the length, each position is on exactly one rank, in ascending order there, and gathering inverts it."""
    divide = engine.context_parallel_indices

    @PROFILE
    @given(tokens=lengths, size=sizes)
    def holds(tokens, size):
        parts = divide(tokens, size, load_balance=load_balance)
        assert len(parts) == size
        assert all(part.tolist() == sorted(part.tolist()) for part in parts)
        held = torch.cat(parts)
        assert sorted(held.tolist()) == list(range(tokens))
        assert held[held.argsort()].tolist() == list(range(tokens))

    holds()


@contract("CP-0-01")
@either_order
def test_parts_are_the_chunks_of_the_definition(engine, load_balance):
    """Ranks hold the chunks of the same number, or those of both ends, the longer chunks first."""
    divide = engine.context_parallel_indices

    @PROFILE
    @given(tokens=lengths, size=sizes)
    def holds(tokens, size):
        parts = divide(tokens, size, load_balance=load_balance)
        assert [part.tolist() for part in parts] == [
            positions_of(rank, size, tokens, load_balance) for rank in range(size)
        ]

    holds()


@contract("CP-0-01")
@either_order
def test_parts_are_equally_long(engine, load_balance):
    """No rank holds two tokens more than another."""
    divide = engine.context_parallel_indices

    @PROFILE
    @given(tokens=lengths, size=sizes)
    def holds(tokens, size):
        counts = [len(part) for part in divide(tokens, size, load_balance=load_balance)]
        assert max(counts) - min(counts) <= 1

    holds()


@contract("CP-0-01")
def test_zig_zag_balances_causal_work(engine):
    """Where chunks are equally long all ranks have the same number of query-key pairs, else two rows' at most."""
    divide = engine.context_parallel_indices

    @PROFILE
    @given(tokens=lengths, size=sizes)
    def holds(tokens, size):
        parts = divide(tokens, size, load_balance=True)
        work = [sum(position + 1 for position in part.tolist()) for part in parts]
        if tokens % (2 * size) == 0:
            assert len(set(work)) == 1
        assert max(work) - min(work) <= 2 * tokens

    holds()


@contract("CP-0-01")
def test_order_is_not_balanced(engine):
    """In order the last of four ranks has seven times the first one's work: what balancing is for."""
    parts = engine.context_parallel_indices(4096, 4)
    work = [int((part + 1).sum()) for part in parts]
    assert [round(one / work[0]) for one in work] == [1, 3, 5, 7]


@contract("CP-0-01")
@pytest.mark.parametrize(("tokens", "size"), [(-1, 2), (8, 0), (8, -2)])
def test_impossible_division(engine, tokens, size):
    """A negative length or no ranks are refused, and the message has both numbers."""
    with pytest.raises(ValueError, match=rf"{tokens}\b.*{size}\b"):
        engine.context_parallel_indices(tokens, size)
