"""Policies that are generated for a memory budget."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.harness.properties import PROFILE

sizes = st.lists(st.integers(0, 20), max_size=8)


def named(numbers: list[int]) -> dict[str, int]:
    return {f"layer {number}": size for number, size in enumerate(numbers)}


def most(layers: dict[str, int], swapped: tuple[str, ...]) -> int:
    """The most bytes on the device in a step, played move by move."""
    names = list(layers)
    here: dict[str, int] = {}
    found = 0
    for turn, name in enumerate(names):
        here[name] = layers[name]
        found = max(found, sum(here.values()))
        # What left after the forward before this one has arrived by now.
        if turn and names[turn - 1] in swapped:
            del here[names[turn - 1]]
    for turn in reversed(range(len(names))):
        if turn:
            here[names[turn - 1]] = layers[names[turn - 1]]
        found = max(found, sum(here.values()))
        del here[names[turn]]
    return found


@contract("SW-0-02")
@pytest.mark.parametrize(
    ("numbers", "budget", "expected"),
    [
        ([4, 4, 4, 4], 16, []),
        ([4, 4, 4, 4], 15, [0]),
        ([4, 4, 4, 4], 12, [0]),
        ([4, 4, 4, 4], 11, [0, 1]),
        ([4, 4, 4, 4], 8, [0, 1]),
        ([1, 4, 4, 4, 4], 12, [0, 1]),
        ([0, 4, 4, 4], 8, [1]),
        ([4, 4], 8, []),
        ([8], 8, []),
        ([], 0, []),
    ],
    ids=["fits", "one", "just_one", "two", "least", "uneven", "empty_layer", "two_layers", "one_layer", "no_layers"],
)
def test_policy(engine, numbers, budget, expected):
    """The earliest layers are swapped, and as many as it takes."""
    found = engine.generate_swap_policy(named(numbers), budget)
    assert found == tuple(f"layer {number}" for number in expected)


@contract("SW-0-02")
@PROFILE
@given(numbers=sizes, budget=st.integers(0, 120))
@example(numbers=[4, 4, 4], budget=8)
@example(numbers=[0, 0, 4, 4, 4], budget=8)
@example(numbers=[9, 1, 9, 9], budget=18)
def test_budget_is_kept(engine, numbers, budget):
    """Whatever the layers, a step fits if any policy does; the last two layers stay, and the last choice is needed."""
    layers = named(numbers)
    everything = tuple(layers)[:-2]
    fits = most(layers, everything) <= budget
    try:
        found = engine.generate_swap_policy(layers, budget)
    except ValueError:
        assert not fits, "there is a policy that fits"
        return
    assert set(found) <= set(everything), f"{found} are swapped, of {everything}"
    assert most(layers, found) <= budget, f"{found} takes {most(layers, found)} bytes of {budget}"
    assert list(found) == sorted(found, key=tuple(layers).index)
    assert not found or most(layers, found[:-1]) > budget, f"{found[-1]} is swapped without need"


@contract("SW-0-02")
@PROFILE
@given(numbers=sizes)
@example(numbers=[3, 3, 3, 3])
def test_same_policy_each_time(engine, numbers):
    """The same layers and budget give the same policy, also right after other ones."""
    layers = named(numbers)
    assume(layers)
    budget = most(layers, tuple(layers)[:-2])
    first = engine.generate_swap_policy(layers, budget)
    engine.generate_swap_policy(named([5, 5, 5, 5]), 10)
    assert engine.generate_swap_policy(layers, budget) == first


@contract("SW-0-02")
def test_names_do_not_count(engine):
    """Layers are taken by their place and not by their names."""
    assert engine.generate_swap_policy({"z": 4, "y": 4, "b": 4, "a": 4}, 12) == ("z",)


@contract("SW-0-02")
@pytest.mark.parametrize(
    ("numbers", "budget", "least"),
    [([4, 4, 4, 4], 7, 8), ([1, 9, 2, 3], 10, 11), ([5], 4, 5)],
    ids=["equal", "uneven", "one_layer"],
)
def test_no_policy_fits(engine, numbers, budget, least):
    """A budget that no policy fits is refused, with the least that would do."""
    with pytest.raises(ValueError, match=f"{budget} bytes.*{least}$"):
        engine.generate_swap_policy(named(numbers), budget)
    engine.generate_swap_policy(named(numbers), least)


@contract("SW-0-02")
@pytest.mark.parametrize("place", [0, 3], ids=["may_be_swapped", "stays"])
def test_no_bytes(engine, place):
    """A layer that saves less than nothing is refused by name, wherever it stands."""
    layers = named([4, 4, 4, 4]) | {f"layer {place}": -1}
    with pytest.raises(ValueError, match=f"layer {place}.*-1"):
        engine.generate_swap_policy(layers, 16)
