"""Plans for a world: against every plan there is, within memory, in one order, and what cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hyper_parallel_tests.domains.auto_parallel.enumeration import NAMES, all_degrees, best_first, can_run, shown
from hyper_parallel_tests.engines.port.auto_parallel import Workload
from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.harness.properties import PROFILE
from hyper_parallel_tests.models.decoder import DecoderShape

SHAPE = DecoderShape(vocab=48, hidden=16, layers=4, heads=4, kv_heads=4, ffn=24, seq=8, tied=False)
WORKLOAD = Workload(SHAPE, rows=32, micro_batches=2)
# So much that no plan is too large.
PLENTY = 1 << 40

# Communication costs nothing and memory counts, or the other way round.
free_of_traffic = replace(WORKLOAD, bandwidth=math.inf)

shapes = st.builds(
    DecoderShape,
    vocab=st.sampled_from([24, 36]),
    hidden=st.just(24),
    layers=st.integers(1, 5),
    heads=st.sampled_from([4, 6, 12]),
    kv_heads=st.sampled_from([1, 2]),
    ffn=st.sampled_from([24, 36]),
    seq=st.just(4),
    tied=st.booleans(),
)
workloads = st.builds(
    Workload,
    shape=shapes,
    rows=st.sampled_from([1, 4, 12, 24]),
    micro_batches=st.sampled_from([1, 2, 3]),
    bandwidth=st.sampled_from([1e6, 1e11, math.inf]),
)
worlds = st.sampled_from([1, 2, 3, 4, 6, 8, 12])


def accepted(search: Callable[[], list[Any]]) -> list[Any]:
    """What must not be refused."""
    try:
        return search()
    except ValueError as error:
        pytest.fail(f"there are plans that fit, but: {error}")


@contract("AP-0-02")
@PROFILE
@given(workload=workloads, world_size=worlds, share=st.sampled_from([0.3, 0.7, 1.0, 2.0]))
@example(workload=WORKLOAD, world_size=8, share=0.7)
@example(workload=free_of_traffic, world_size=8, share=2.0)
def test_all_that_fit_best_first(engine, workload, world_size, share):
    """The plans are those, and in the order, that trying all degrees finds; none where that finds none."""
    whole = engine.estimate_plan(workload, {}).memory
    limit = max(1, int(whole * share))
    expected = best_first(engine, workload, world_size, limit)
    if not expected:
        with pytest.raises(ValueError, match="no plan fits|can run"):
            engine.search_plans(workload, world_size, memory_limit=limit)
        return
    found = accepted(partial(engine.search_plans, workload, world_size, memory_limit=limit))
    assert [shown(one) for one in found] == [shown(one) for one in expected]
    assert [one.time for one in found] == [one.time for one in expected]


@contract("AP-0-02")
@pytest.mark.parametrize("world_size", [1, 6, 16, 1024])
def test_every_plan_is_sound(engine, world_size):
    """Degrees multiply to the world, the model and the batch divide by them, and stages hold each block once."""
    shape = replace(SHAPE, heads=16, kv_heads=8, hidden=64)
    workload = Workload(shape, rows=2048, micro_batches=2)
    plans = engine.search_plans(workload, world_size, memory_limit=PLENTY)
    assert plans
    for one in plans:
        assert math.prod(one.degrees.values()) == world_size, shown(one)
        assert set(one.degrees) == set(NAMES)
        assert can_run(workload, dict(one.degrees)), shown(one)
        assert [block for stage in one.stages for block in stage] == list(range(shape.layers)), shown(one)
        assert len(one.stages) == one.degrees["pp"], shown(one)
        # As the port has it: an estimate that may be anything says nothing.
        assert one.memory_error <= 0.1


@contract("AP-0-02")
def test_no_plan_over_the_limit(engine):
    """Each step down of the limit takes out the plans above it and no others."""
    plans = engine.search_plans(WORKLOAD, 8, memory_limit=PLENTY)
    sizes = sorted({one.memory for one in plans})
    assert len(sizes) > 3
    for limit in sizes:
        found = engine.search_plans(WORKLOAD, 8, memory_limit=limit)
        assert [shown(one) for one in found] == [shown(one) for one in plans if one.memory <= limit]


@contract("AP-0-02")
def test_least_memory_is_told(engine):
    """Below the leanest plan there is none, and the message has the limit and what would do."""
    least = min(one.memory for one in engine.search_plans(WORKLOAD, 8, memory_limit=PLENTY))
    with pytest.raises(ValueError, match=rf"no plan fits {least - 1} bytes.*\b{least}$"):
        engine.search_plans(WORKLOAD, 8, memory_limit=least - 1)


@contract("AP-0-02")
def test_ties_fall_one_way(engine):
    """Equally fast plans are told apart by memory, then by fewer stages, less tp, less fsdp, in each call the same."""
    # Without layers to compute and without traffic all take no time.
    workload = replace(free_of_traffic, flops=math.inf)
    plans = engine.search_plans(workload, 8, memory_limit=PLENTY)
    assert {one.time for one in plans} == {0.0}
    keys = [(one.memory, *(one.degrees[name] for name in ("pp", "tp", "fsdp"))) for one in plans]
    assert keys == sorted(keys)
    for names in (NAMES[::-1], ("tp", "pp", "fsdp", "dp")):
        again = engine.search_plans(workload, 8, memory_limit=PLENTY, degrees=names)
        assert [shown(one) for one in again] == [shown(one) for one in plans]


@contract("AP-0-02")
def test_top_k_are_the_first(engine):
    """Fewer plans are the first of all."""
    plans = engine.search_plans(WORKLOAD, 8, memory_limit=PLENTY)
    assert len(plans) > 5
    for number in (1, 5, len(plans), len(plans) + 1):
        found = engine.search_plans(WORKLOAD, 8, memory_limit=PLENTY, top_k=number)
        assert [shown(one) for one in found] == [shown(one) for one in plans[:number]]


@contract("AP-0-02")
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"degrees": ("fsdp",)}, lambda one: one["fsdp"] == 8),
        ({"degrees": ("tp", "dp")}, lambda one: one["tp"] * one["dp"] == 8),
        ({"fixed": {"tp": 2}}, lambda one: one["tp"] == 2),
        ({"fixed": {"dp": 1, "pp": 2}}, lambda one: one["dp"] == 1 and one["pp"] == 2),
        ({"degrees": ("fsdp",), "fixed": {"tp": 4}}, lambda one: one["tp"] == 4 and one["fsdp"] == 2),
    ],
    ids=["fsdp_alone", "tp_and_dp", "tp_given", "two_given", "one_free_one_given"],
)
def test_chosen_degrees(engine, options, kept):
    """Only the named degrees are above one, and given ones are as given."""
    expected = [one for one in best_first(engine, WORKLOAD, 8, PLENTY) if kept(one.degrees)]
    found = engine.search_plans(WORKLOAD, 8, memory_limit=PLENTY, **options)
    assert [shown(one) for one in found] == [shown(one) for one in expected]


def in_order(engine, first: dict[str, int], second: dict[str, int], workload: Workload = WORKLOAD) -> bool:
    ours, theirs = engine.estimate_plan(workload, first), engine.estimate_plan(workload, second)
    return ours.memory < theirs.memory


@contract("AP-0-02")
def test_cost_model(engine):
    """Dividing takes memory off a rank, replicas do not take parameters off, and slower links cost time."""
    assert in_order(engine, {"fsdp": 8}, {"fsdp": 4})
    assert in_order(engine, {"fsdp": 8}, {"dp": 8})
    assert in_order(engine, {"tp": 4}, {"tp": 2})
    assert in_order(engine, {"pp": 4}, {"pp": 2})
    slow = replace(WORKLOAD, bandwidth=1e3)
    for degrees in ({"fsdp": 8}, {"dp": 8}, {"tp": 4}, {"pp": 4}):
        assert engine.estimate_plan(slow, degrees).time > engine.estimate_plan(WORKLOAD, degrees).time, degrees
        assert engine.estimate_plan(free_of_traffic, degrees).time < engine.estimate_plan(free_of_traffic, {}).time
    assert engine.estimate_plan(slow, {}).time == engine.estimate_plan(free_of_traffic, {}).time


REFUSED = {
    "unknown_degree": (8, {"degrees": ("fsd", "tp")}, "unknown degree 'fsd'; near matches: fsdp"),
    "unknown_given": (8, {"fixed": {"expert": 2}}, "unknown degree 'expert'"),
    "no_world": (0, {}, "world_size is 0"),
    "no_memory": (8, {"memory_limit": 0}, "memory_limit is 0"),
    "no_plans": (8, {"top_k": 0}, "top_k is 0"),
    "given_zero": (8, {"fixed": {"tp": 0}}, "degree tp is 0"),
    "given_does_not_divide": (8, {"fixed": {"tp": 3}}, "tp=3 do not divide a world of 8"),
    "nothing_can_run": (7, {}, "world of 7 can run"),
    "nothing_with_what_is_given": (8, {"degrees": ("tp",)}, "world of 8 can run"),
}


@contract("AP-0-02")
@pytest.mark.parametrize(("world_size", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_questions_are_refused(engine, world_size, options, message):
    """What has no answer is an error that names the culprit."""
    with pytest.raises(ValueError, match=message):
        engine.search_plans(WORKLOAD, world_size, **({"memory_limit": PLENTY} | options))


UNRUNNABLE = {
    "heads": ({"tp": 8}, {}, "tp=8 does not divide heads=4"),
    "layers": ({"pp": 8}, {}, "pp=8 stages for 4 layers"),
    "rows": ({"dp": 3}, {}, "dp x fsdp=3 .* 32 rows"),
    "micro_batches": ({"dp": 32, "pp": 2}, {}, "2 micro-batches .* 32 rows"),
    "tied": ({"pp": 2}, {"tied": True}, "pp=2 .*tied"),
    "vocabulary": ({"tp": 4}, {"vocab": 50}, "tp=4 does not divide vocab=50"),
    "unknown": ({"ep": 2}, {}, "unknown degree 'ep'"),
    "key_heads": ({"tp": 4}, {"kv_heads": 2}, "tp=4 does not divide kv_heads=2"),
    "feed_forward": ({"tp": 4}, {"ffn": 22}, "tp=4 does not divide ffn=22"),
    "no_integer": ({"fsdp": 2.0}, {}, "degree fsdp is 2.0"),
    "no_number": ({"fsdp": True}, {}, "degree fsdp is True"),
}


@contract("AP-0-02")
@pytest.mark.parametrize(("degrees", "changes", "message"), UNRUNNABLE.values(), ids=UNRUNNABLE)
def test_degrees_that_cannot_run(engine, degrees, changes, message):
    """An estimate of what cannot be run is refused, with both numbers."""
    workload = replace(WORKLOAD, shape=replace(SHAPE, **changes))
    with pytest.raises(ValueError, match=message):
        engine.estimate_plan(workload, degrees)


@contract("AP-0-02")
def test_enumeration_is_whole():
    """What the search is judged by has every ordered factorisation, once: 4 places for each of 3 twos are 20."""
    degrees = all_degrees(8)
    assert len(degrees) == math.comb(3 + 3, 3)
    assert len({tuple(one.items()) for one in degrees}) == len(degrees)
