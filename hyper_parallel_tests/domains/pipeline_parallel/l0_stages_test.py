"""How a model's layers are cut into stages."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.harness.properties import PROFILE


@st.composite
def sizes(draw):
    """Numbers of layers and of stages that they can make."""
    layers = draw(st.integers(1, 100))
    return layers, draw(st.integers(1, min(layers, 16)))


@contract("PP-0-01")
def test_every_layer_is_in_one_stage_in_order(engine):
    """The stages one after the other are all layers, none is empty, and none has two more than another."""

    @PROFILE
    @given(size=sizes())
    def holds(size):
        layers, stages = size
        parts = engine.split_into_stages(layers, stages)
        assert list(itertools.chain(*parts)) == list(range(layers))
        counts = [len(part) for part in parts]
        assert len(counts) == stages
        assert counts == sorted(counts, reverse=True)
        assert 1 <= max(counts) <= min(counts) + 1

    holds()


@contract("PP-0-01")
def test_given_counts_are_taken(engine):
    """Uneven stages have as many layers as they were given, in order."""
    parts = engine.split_into_stages(10, 4, counts=[1, 4, 3, 2])
    assert [list(part) for part in parts] == [[0], [1, 2, 3, 4], [5, 6, 7], [8, 9]]


@contract("PP-0-01")
def test_heaviest_stage_is_as_light_as_can_be(engine):
    """Of all splits into consecutive layers, the weighted one has the lightest heaviest stage."""

    @PROFILE
    @given(weights=st.lists(st.integers(0, 20), min_size=1, max_size=8), data=st.data())
    def holds(weights, data):
        stages = data.draw(st.integers(1, len(weights)))
        parts = engine.split_into_stages(len(weights), stages, weights=weights)
        assert list(itertools.chain(*parts)) == list(range(len(weights)))
        assert all(parts)
        splits = ((0, *inner, len(weights)) for inner in itertools.combinations(range(1, len(weights)), stages - 1))
        lightest = min(max(sum(weights[a:b]) for a, b in itertools.pairwise(ends)) for ends in splits)
        assert max(sum(weights[layer] for layer in part) for part in parts) == lightest

    holds()


@contract("PP-0-01")
def test_weights_move_the_borders(engine):
    """A heavy first layer, such as an embedding, leaves its stage with fewer layers than the others."""
    parts = engine.split_into_stages(8, 3, weights=[4, 1, 1, 1, 1, 1, 1, 2])
    assert [len(part) for part in parts] == [1, 4, 3]


@contract("PP-0-01")
@pytest.mark.parametrize(("layers", "stages"), [(3, 4), (1, 2), (0, 1), (4, 0), (4, -1)])
def test_impossible_number_of_stages(engine, layers, stages):
    """More stages than layers, or none, are refused, and the message has both numbers."""
    with pytest.raises(ValueError, match=rf"^{layers}\b.*{stages}\b"):
        engine.split_into_stages(layers, stages)


@contract("PP-0-01")
@pytest.mark.parametrize(
    ("counts", "weights"),
    [
        ([3, 3], None),
        ([3, 0, 3], None),
        ([3, 2, 2], None),
        ([3, -1, 4], None),
        (None, [1] * 5),
        (None, [1, 1, -1, 1, 1, 1]),
        ([2, 2, 2], [1] * 6),
    ],
    ids=[
        "fewer_counts_than_stages",
        "empty_stage",
        "too_many_layers",
        "negative_count",
        "fewer_weights_than_layers",
        "negative_weight",
        "both",
    ],
)
def test_impossible_split(engine, counts, weights):
    """Counts and weights that do not fit six layers in three stages are refused."""
    with pytest.raises(ValueError, match=r"counts|weights"):
        engine.split_into_stages(6, 3, counts=counts, weights=weights)
