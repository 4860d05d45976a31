"""Which queries meet which keys in each method."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyper_parallel_tests.domains.context_parallel.reference import positions_of
from hyper_parallel_tests.domains.context_parallel.setting import METHODS
from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.harness.properties import PROFILE

each_method = pytest.mark.parametrize("method", METHODS)
either_order = pytest.mark.parametrize("load_balance", [False, True], ids=["in_order", "zig_zag"])


def pairs_met(layout, group):
    """How often each (query position, query head, key position) is computed, with the key head of its group."""
    return Counter(
        (q, head, k)
        for steps in layout
        for tile in steps
        for q in tile.q_positions.tolist()
        for head in tile.q_heads.tolist()
        for k in tile.k_positions.tolist()
        for kv_head in tile.kv_heads.tolist()
        if kv_head == head // group
    )


@contract("CP-0-02")
@each_method
@either_order
def test_each_pair_meets_exactly_once(engine, method, load_balance):
    """Over all ranks and steps every query of every head meets every key of its key head once, and none twice."""

    @PROFILE
    @given(tokens=st.integers(0, 9), size=st.integers(1, 4), per_rank=st.integers(1, 2), group=st.integers(1, 2))
    def holds(tokens, size, per_rank, group):
        kv_heads = size * per_rank
        heads = kv_heads * group
        layout = engine.context_parallel_layout(tokens, heads, kv_heads, size, method=method, load_balance=load_balance)
        met = pairs_met(layout, group)
        assert set(met) == {(q, h, k) for q in range(tokens) for h in range(heads) for k in range(tokens)}
        assert set(met.values()) <= {1}

    holds()


@contract("CP-0-02")
def test_ulysses_deals_heads_out_in_order(engine):
    """Each rank has the whole sequence of neighbouring heads, and the key heads of just these."""
    layout = engine.context_parallel_layout(10, 8, 4, 2, method="ulysses", load_balance=True)
    assert [[tile.q_heads.tolist() for tile in steps] for steps in layout] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    assert [[tile.kv_heads.tolist() for tile in steps] for steps in layout] == [[[0, 1]], [[2, 3]]]
    assert all(tile.q_positions.tolist() == list(range(10)) for steps in layout for tile in steps)


@contract("CP-0-02")
@either_order
def test_all_gather_keeps_the_queries(engine, load_balance):
    """Each rank has its own queries of all heads, and all keys, in one step."""
    layout = engine.context_parallel_layout(11, 4, 2, 3, method="all_gather", load_balance=load_balance)
    for rank, steps in enumerate(layout):
        (tile,) = steps
        assert tile.q_positions.tolist() == positions_of(rank, 3, 11, load_balance)
        assert tile.k_positions.tolist() == list(range(11))
        assert (tile.q_heads.tolist(), tile.kv_heads.tolist()) == ([0, 1, 2, 3], [0, 1])


@contract("CP-0-02")
@either_order
def test_ring_passes_keys_on(engine, load_balance):
    """At step t rank r has its own queries and the keys of rank r - t: those that rank r - 1 had a step before."""
    size, tokens = 4, 13
    layout = engine.context_parallel_layout(tokens, 3, 3, size, method="ring", load_balance=load_balance)
    for rank, steps in enumerate(layout):
        assert len(steps) == size
        for step, tile in enumerate(steps):
            assert tile.q_positions.tolist() == positions_of(rank, size, tokens, load_balance)
            assert tile.k_positions.tolist() == positions_of((rank - step) % size, size, tokens, load_balance)


@contract("CP-0-02")
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "culprit"), [(6, 6, 4, 6), (8, 2, 4, 2), (3, 1, 2, 3)], ids=["q", "grouped", "both"]
)
def test_heads_that_ranks_do_not_divide(engine, heads, kv_heads, size, culprit):
    """Ulysses refuses heads that ranks do not divide, and the message names both numbers."""
    with pytest.raises(ValueError, match=rf"\b{culprit}\b.*\b{size}\b"):
        engine.context_parallel_layout(16, heads, kv_heads, size, method="ulysses")


@contract("CP-0-02")
@pytest.mark.parametrize("method", ["all_gather", "ring"])
def test_other_methods_take_any_heads(engine, method):
    """Without an exchange of heads their number does not matter."""
    layout = engine.context_parallel_layout(16, 3, 1, 4, method=method)
    assert {tuple(tile.q_heads.tolist()) for steps in layout for tile in steps} == {(0, 1, 2)}


@contract("CP-0-02")
@each_method
def test_groups_that_do_not_come_out(engine, method):
    """Query heads that cannot share the key heads evenly are refused in every method."""
    with pytest.raises(ValueError, match=r"\b6\b.*\b4\b"):
        engine.context_parallel_layout(16, 6, 4, 2, method=method)
