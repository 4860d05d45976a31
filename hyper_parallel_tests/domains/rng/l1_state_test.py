"""States of random streams: saved, restored, and set aside for a region."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.rng.streams import SEED, draw, single_card, untouched_generators
from hyper_parallel_tests.harness import assert_differs, assert_equal, contract


@pytest.fixture(autouse=True)
def generators():
    with untouched_generators():
        torch.manual_seed(SEED)
        yield


@pytest.fixture
def tracker(engine, world):
    """Two streams; that of `own` is another one on each rank."""
    found = engine.RNGStatesTracker()
    found.add("shared", 7)
    found.add("own", 100 + world.rank)
    return found


class Interruption(Exception):
    """What a region is left by."""


@contract("RN-1-01")
def test_adding_a_stream_moves_nothing(engine, world):
    """The default stream is where it was after streams have been added."""
    tracker = engine.RNGStatesTracker()
    tracker.add("one", 1)
    assert_equal(draw(world), single_card(world, torch.rand, 5), what="next numbers")


@contract("RN-1-01")
def test_region_draws_from_its_own_stream(world, tracker):
    """Inside numbers are those of the stream's seed, whatever was drawn outside before."""
    draw(world)
    with tracker.fork("shared"):
        inside = draw(world)
    assert_equal(inside, single_card(world, torch.rand, 5, seed=7), what="numbers inside")
    with tracker.fork("own"):
        inside = draw(world)
    assert_equal(inside, single_card(world, torch.rand, 5, seed=100 + world.rank), what="numbers inside")


@contract("RN-1-01")
@pytest.mark.parametrize("leave", ["end", "exception"])
def test_region_leaves_the_outer_stream_where_it_was(world, tracker, leave):
    """Outside numbers go on as if there had been no region, also if it was left by an exception."""
    whole = single_card(world, torch.rand, 10)
    before = draw(world)
    try:
        with tracker.fork("shared"):
            draw(world, 3)
            if leave == "exception":
                raise Interruption
    except Interruption:
        pass
    assert_equal(torch.cat((before, draw(world))), whole, what="numbers outside")


@contract("RN-1-01")
@pytest.mark.parametrize("leave", ["end", "exception"])
def test_region_goes_on_where_it_ended(world, tracker, leave):
    """What the next region of a stream draws follows what the last one drew, also if it was left by an exception."""
    drawn = []
    for _ in range(2):
        try:
            with tracker.fork("shared"):
                drawn.append(draw(world))
                if leave == "exception":
                    raise Interruption
        except Interruption:
            pass
        draw(world)
    assert_equal(torch.cat(drawn), single_card(world, torch.rand, 10, seed=7), what="numbers inside")


@contract("RN-1-01")
@pytest.mark.parametrize("leave", ["end", "exception"])
def test_regions_nest(world, tracker, leave):
    """A region in a region leaves the outer one where it was, and that one the default stream."""
    with tracker.fork("shared"):
        first = draw(world)
        try:
            with tracker.fork("own"):
                inner = draw(world)
                if leave == "exception":
                    raise Interruption
        except Interruption:
            pass
        second = draw(world)
    assert_equal(torch.cat((first, second)), single_card(world, torch.rand, 10, seed=7), what="outer region")
    assert_equal(inner, single_card(world, torch.rand, 5, seed=100 + world.rank), what="inner region")
    assert_equal(draw(world), single_card(world, torch.rand, 5), what="default stream")


@contract("RN-1-01")
def test_restored_states_repeat_the_numbers(engine, world, tracker):
    """Restored into another tracker, all streams go on from where they were saved, as often as one likes."""

    def next_of_each(one):
        found = {}
        for name in ("shared", "own"):
            with one.fork(name):
                found[name] = draw(world)
        return found

    next_of_each(tracker)
    saved = tracker.get_states()
    expected = next_of_each(tracker)
    for _ in range(2):
        restored = engine.RNGStatesTracker()
        restored.set_states(saved)
        assert_equal(next_of_each(restored), expected, what="numbers")


@contract("RN-1-01")
def test_restoring_replaces_everything(engine, tracker):
    """Streams that the saved states do not have are gone, and their names and seeds are free."""
    tracker.set_states(engine.RNGStatesTracker().get_states())
    with pytest.raises(KeyError, match="shared"), tracker.fork("shared"):
        pass
    tracker.add("shared", 7)


@contract("RN-1-01")
def test_default_stream_is_saved_and_restored(engine, world, ledger):
    """What is drawn after the default stream's state was restored is what was drawn after it was saved."""
    mesh = world.mesh(dp=world.size)
    first = draw(world)
    saved = engine.get_rng_state(mesh)
    expected = draw(world)
    assert_differs(expected, first, ledger["exact"], what="numbers")
    for _ in range(2):
        engine.set_rng_state(saved, mesh)
        assert_equal(draw(world), expected, what="numbers")


@contract("RN-1-01")
def test_unknown_and_repeated_streams(tracker):
    """A stream that does not exist, a name or a seed that is taken are refused, by name or number."""
    with pytest.raises(KeyError, match="else"), tracker.fork("else"):
        pass
    with pytest.raises(ValueError, match="shared"):
        tracker.add("shared", 8)
    with pytest.raises(ValueError, match="7"):
        tracker.add("twin", 7)
