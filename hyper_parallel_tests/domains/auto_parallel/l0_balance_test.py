"""Layers cut into pipeline stages: against every cut there is, within memory limits, and what cannot be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hyper_parallel_tests.domains.auto_parallel.cuts import best_cut, least_limit
from hyper_parallel_tests.engines.port.pipeline_balancing import LayerCost
from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.harness.properties import PROFILE

layer_costs = st.builds(LayerCost, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))


@st.composite
def questions(draw):
    """Layers, stages, micro-batches."""
    layers = draw(st.lists(layer_costs, min_size=1, max_size=8))
    return layers, draw(st.integers(1, len(layers))), draw(st.integers(1, 6))


def of_times(*times: float) -> list[LayerCost]:
    return [LayerCost(one) for one in times]


def accepted(balance: Callable[[], Any]) -> Any:
    """What must not be refused."""
    try:
        return balance()
    except ValueError as error:
        pytest.fail(f"there is a cut that fits, but: {error}")


def sizes(balance) -> tuple[int, ...]:
    return tuple(len(one) for one in balance.stages)


@contract("AP-0-01")
@PROFILE
@given(question=questions())
def test_stages_are_a_cut(engine, question):
    """Every layer is in one stage, stages are consecutive and in order, and none is empty."""
    layers, num_stages, micro_batches = question
    found = engine.balance_pipeline(layers, num_stages, micro_batches=micro_batches)
    assert [layer for stage in found.stages for layer in stage] == list(range(len(layers)))
    assert len(found.stages) == num_stages
    assert all(len(stage) > 0 for stage in found.stages)


@contract("AP-0-01")
@PROFILE
@given(question=questions())
# Taking layers until a share is full leaves the last stage too much.
@example(question=(of_times(3, 3, 3, 5, 5, 5), 3, 1))
@example(question=(of_times(1, 1, 1, 9), 2, 4))
@example(question=(of_times(9, 1, 1, 1), 2, 4))
@example(question=(of_times(0, 0, 0), 2, 1))
def test_fastest_of_all_cuts(engine, question):
    """No cut has a shorter step, of equal ones the first stages are the shortest, and what it says of them is so."""
    layers, num_stages, micro_batches = question
    found = engine.balance_pipeline(layers, num_stages, micro_batches=micro_batches)
    best = best_cut(layers, num_stages, micro_batches, None)
    assert sizes(found) == best.sizes
    assert found.times == tuple(map(float, best.times))
    assert found.memory == best.memory
    assert found.step_time == float(sum(best.times) + (micro_batches - 1) * max(best.times))


@contract("AP-0-01")
@PROFILE
@given(question=questions(), slack=st.integers(-3, 12), tighter=st.integers(0, 7))
@example(question=([LayerCost(1, 2, 1)] * 4, 2, 4), slack=0, tighter=1)
@example(question=([LayerCost(9, 1), LayerCost(1, 5), LayerCost(1, 5)], 2, 1), slack=0, tighter=7)
def test_limits_are_kept(engine, question, slack, tighter):
    """Within a limit a stage, another one for one stage, the fastest cut that fits is found, and only such a one."""
    layers, num_stages, micro_batches = question
    limits = [max(1, least_limit(layers, num_stages, micro_batches) + slack)] * num_stages
    limits[tighter % num_stages] = max(1, limits[0] - 2)
    best = best_cut(layers, num_stages, micro_batches, limits)
    balance = partial(engine.balance_pipeline, layers, num_stages, micro_batches=micro_batches, memory_limit=limits)
    if best is None:
        with pytest.raises(ValueError, match="no cut"):
            balance()
        return
    found = accepted(balance)
    assert all(taken <= limit for taken, limit in zip(found.memory, limits, strict=True))
    assert sizes(found) == best.sizes


@contract("AP-0-01")
@PROFILE
@given(question=questions())
def test_infeasible_names_the_least_limit(engine, question):
    """One byte below what some cut does with is refused, with that number; with that number there is a cut."""
    layers, num_stages, micro_batches = question
    least = least_limit(layers, num_stages, micro_batches)
    if least > 1:
        with pytest.raises(ValueError, match=rf"no cut .*\b{least - 1} bytes.*\b{least}$"):
            engine.balance_pipeline(layers, num_stages, micro_batches=micro_batches, memory_limit=least - 1)
    found = engine.balance_pipeline(layers, num_stages, micro_batches=micro_batches, memory_limit=max(1, least))
    assert max(found.memory) <= max(1, least)


@contract("AP-0-01")
def test_memory_moves_a_boundary(engine):
    """The first stages hold more micro-batches at once: where that is too much, they get fewer layers."""
    layers = [LayerCost(1, 0, 10)] * 6
    assert sizes(engine.balance_pipeline(layers, 3, micro_batches=8)) == (2, 2, 2)
    assert sizes(engine.balance_pipeline(layers, 3, micro_batches=8, memory_limit=40)) == (1, 2, 3)
    assert engine.balance_pipeline(layers, 3, micro_batches=8, memory_limit=40).memory == (30, 40, 30)
    # With one micro-batch there is no such difference.
    assert sizes(engine.balance_pipeline(layers, 3, micro_batches=1, memory_limit=20)) == (2, 2, 2)


@contract("AP-0-01")
@pytest.mark.parametrize("place", range(3), ids=["first", "middle", "last"])
def test_limit_of_each_stage(engine, place):
    """A limit that one stage alone has is kept by that one, the last too."""
    layers = [LayerCost(1, 10)] * 6
    limits = [60, 60, 60]
    limits[place] = 10
    found = engine.balance_pipeline(layers, 3, memory_limit=limits)
    assert sizes(found)[place] == 1
    assert max(sizes(found)) == 3


@contract("AP-0-01")
@pytest.mark.parametrize(("stages", "micro_batches"), itertools.product((1, 2, 4), (1, 3, 8)))
def test_in_flight(engine, stages, micro_batches):
    """Under 1F1B a stage holds as many as there are stages from it to the last, if there are so many."""
    found = engine.micro_batches_in_flight(stages, micro_batches)
    assert list(found) == [min(behind, micro_batches) for behind in range(stages, 0, -1)]


@contract("AP-0-01")
@pytest.mark.parametrize("seconds", [[0.1] * 10 + [1.0], [1e-9, 1e9, 1e-9, 1e9]], ids=["tenths", "wide"])
def test_times_that_are_no_integers(engine, seconds):
    """Sums of times are rounded once, so that equal stages are not told apart by the order of adding."""
    layers = of_times(*seconds)
    found = engine.balance_pipeline(layers, 2, micro_batches=2)
    ends = [sum(sizes(found)[:place]) for place in range(3)]
    assert found.times == tuple(math.fsum(seconds[first:end]) for first, end in itertools.pairwise(ends))
    assert max(found.times) == min(
        max(math.fsum(seconds[:end]), math.fsum(seconds[end:])) for end in range(1, len(seconds))
    )


REFUSED = {
    "no_layers": ([], 1, {}, "no layers"),
    "no_stages": (of_times(1, 1), 0, {}, "0 stages for 2 layers"),
    "more_stages_than_layers": (of_times(1, 1), 3, {}, "3 stages for 2 layers"),
    "negative_time": (of_times(1, -1), 1, {}, "layer 1 has time -1"),
    "no_number": (of_times(float("nan")), 1, {}, "layer 0 has time nan"),
    "endless": (of_times(1, float("inf")), 1, {}, "layer 1 has time inf"),
    "negative_parameters": ([LayerCost(1, -2)], 1, {}, "layer 0 has parameter_memory -2"),
    "negative_activations": ([LayerCost(1, 0, -3)], 1, {}, "layer 0 has activation_memory -3"),
    "no_memory": (of_times(1), 1, {"memory_limit": 0}, "limit of 0 bytes"),
    "negative_limit": (of_times(1, 1), 2, {"memory_limit": [5, -1]}, "limit of -1 bytes"),
    "limits_of_other_stages": (of_times(1, 1), 2, {"memory_limit": [5, 5, 5]}, "3 memory limits for 2 stages"),
    "no_micro_batches": (of_times(1), 1, {"micro_batches": 0}, "0 micro-batches"),
}


@contract("AP-0-01")
@pytest.mark.parametrize(("layers", "stages", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_questions_are_refused(engine, layers, stages, options, message):
    """What has no answer is an error that names the culprit."""
    with pytest.raises(ValueError, match=message):
        engine.balance_pipeline(layers, stages, **options)
