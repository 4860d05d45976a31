"""Multimodal pipelines: encoders on all ranks, one decoder over all ranks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyper_parallel_tests.domains.pipeline_parallel.simulator import assert_runs, parse, simulate
from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.harness.properties import PROFILE

sizes = st.tuples(st.integers(1, 16), st.integers(1, 64))

AHEAD = 4


@contract("PP-0-05")
def test_each_microbatch_is_encoded_once(engine):
    """Micro-batches are dealt out to the ranks in turn, each one to one rank."""

    @PROFILE
    @given(size=sizes)
    def holds(size):
        ranks, microbatches = size
        dealt = engine.mpipe_assignment(microbatches, ranks)
        assert len(dealt) == ranks
        assert sorted(itertools.chain(*dealt)) == list(range(microbatches))
        assert all(one % ranks == rank for rank, items in enumerate(dealt) for one in items)

    holds()


@contract("PP-0-05")
def test_transpose_restores_the_order(engine):
    """What the ranks encoded comes to the decoder in the order of the micro-batches, also from an uneven last round."""

    @PROFILE
    @given(size=sizes)
    def holds(size):
        ranks, microbatches = size
        encoded = [[f"image {one}" for one in items] for items in engine.mpipe_assignment(microbatches, ranks)]
        assert engine.mpipe_transpose(encoded) == [f"image {one}" for one in range(microbatches)]

    holds()


@contract("PP-0-05")
@pytest.mark.parametrize("counts", [(1, 2), (3, 1), (2, 0, 1)], ids=str)
def test_wrong_counts_are_not_transposed(engine, counts):
    """Ranks that have other numbers of micro-batches than they were dealt are an error."""
    with pytest.raises(ValueError, match=r"\["):
        engine.mpipe_transpose([["image"] * count for count in counts])


@contract("PP-0-05")
def test_multimodal_table_runs(engine):
    """Encoder and decoder passes are complete and in order, messages match, and nobody waits in a circle."""

    @PROFILE
    @given(size=st.tuples(st.integers(1, 16), st.integers(1, 24)))
    def holds(size):
        ranks, microbatches = size
        assert_runs(
            engine.mpipe_table(ranks, microbatches),
            stages=ranks + 1,
            microbatches=microbatches,
            limits={rank: ranks - rank + AHEAD for rank in range(ranks)},
            spread={0},
        )

    holds()


@contract("PP-0-05")
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 8), (4, 10)])
def test_ranks_do_their_part(engine, ranks, microbatches):
    """A rank encodes the micro-batches that were dealt to it, and has the decoder's stage of its number, in order."""
    table = engine.mpipe_table(ranks, microbatches)
    for rank, dealt in enumerate(engine.mpipe_assignment(microbatches, ranks)):
        actions = [parse(one) for one in table[rank]]
        for kind in "FB":
            encoded = [one.microbatch for one in actions if (one.stage, one.kind) == (0, kind)]
            decoded = [one.microbatch for one in actions if (one.stage, one.kind) == (rank + 1, kind)]
            assert encoded == dealt, (rank, kind)
            assert decoded == list(range(microbatches)), (rank, kind)


@contract("PP-0-05")
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_encoder_and_decoder_are_interleaved(engine, ranks):
    """On each rank, encoding goes on after the decoder began, and its backward begins before the decoder's ended."""
    for rank, actions in engine.mpipe_table(ranks, 8 * ranks).items():
        order = [parse(one)[:2] for one in actions]
        last_encoded = len(order) - 1 - order[::-1].index((0, "F"))
        last_decoded = len(order) - 1 - order[::-1].index((rank + 1, "B"))
        assert order.index((rank + 1, "F")) < last_encoded, rank
        assert order.index((0, "B")) < last_decoded, rank


@contract("PP-0-05")
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_interleaving_is_not_slower(engine, ranks):
    """A step takes no longer than with all encoding done before the decoder begins, which needs far more memory."""
    microbatches = 4 * ranks
    run = simulate(engine.mpipe_table(ranks, microbatches), stages=ranks + 1, microbatches=microbatches, spread={0})
    assert run.makespan <= 3 * microbatches // ranks + 3 * (microbatches + ranks - 1)


@contract("PP-0-05")
def test_reordering_is_an_order_and_balances(engine):
    """Each sample has one place, and the most expensive micro-batch is no more expensive than it was."""

    @PROFILE
    @given(microbatches=st.integers(1, 8), size=st.integers(1, 4), data=st.data())
    def holds(microbatches, size, data):
        count = microbatches * size
        costs = data.draw(st.lists(st.integers(0, 100), min_size=count, max_size=count))
        order = engine.mpipe_reordering(costs, microbatches)
        assert sorted(order) == list(range(count))

        def dearest(samples):
            return max(sum(costs[one] for one in samples[at : at + size]) for at in range(0, count, size))

        assert dearest(order) <= dearest(range(count))

    holds()


@contract("PP-0-05")
def test_reordering_parts_two_large_images(engine):
    """Two large images in one micro-batch and none in the other: afterwards each has one."""
    order = engine.mpipe_reordering([100, 90, 1, 2], 2)
    assert [sorted(order[:2]), sorted(order[2:])] in ([[0, 2], [1, 3]], [[1, 3], [0, 2]])


@contract("PP-0-05")
def test_order_is_restored(engine):
    """What was computed in any order comes back in the order of the batch."""

    @PROFILE
    @given(order=st.integers(0, 12).flatmap(lambda count: st.permutations(range(count))))
    def holds(order):
        assert engine.mpipe_restore([f"loss {one}" for one in order], order) == [
            f"loss {one}" for one in range(len(order))
        ]

    holds()


@contract("PP-0-05")
def test_impossible_reordering(engine):
    """Samples that do not make equal micro-batches, and an order that is none, are errors."""
    with pytest.raises(ValueError, match=r"\b5\b.*\b2\b"):
        engine.mpipe_reordering([1, 2, 3, 4, 5], 2)
    with pytest.raises(ValueError, match=r"\[0, 0\]"):
        engine.mpipe_restore(["a", "b"], [0, 0])
