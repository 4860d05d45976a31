"""What redistribution sends, for every pair of placements, in worlds where nothing arrives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from hyper_parallel_tests.domains.dtensor.reference import coordinates, held
from hyper_parallel_tests.harness import contract, trace

# Of which the ranks of every mesh here hold parts alike.
SIZE = (12, 24)

KINDS = {
    "R": lambda engine: engine.Replicate(),
    "S0": lambda engine: engine.Shard(0),
    "S1": lambda engine: engine.Shard(1),
    "P": lambda engine: engine.Partial("sum"),
    "Pavg": lambda engine: engine.Partial("avg"),
    "Pmax": lambda engine: engine.Partial("max"),
}
WHOLE = ["R", "S0", "S1"]
PARTIAL = ["P", "Pavg", "Pmax"]

# Along one mesh dimension, the one collective that moves least; a pair that is not here sends nothing.
PLANS = {
    "all_gather": [("S0", "R"), ("S1", "R")],
    "all_to_all": [("S0", "S1"), ("S1", "S0")],
    "all_reduce": [(kind, "R") for kind in PARTIAL],
    "reduce_scatter": list(itertools.product(PARTIAL, ["S0", "S1"])),
}

# Pairs of kinds on a mesh of two dimensions, apart by whether one tensor dimension is divided twice.
SHARING = {
    "apart": [kinds for kinds in itertools.product(WHOLE, repeat=2) if kinds[0] != kinds[1] or kinds[0] == "R"],
    "shared": [("S0", "S0"), ("S1", "S1")],
}


@contextmanager
def meshed(engine, mesh_shape: tuple[int, ...], rank: int = 1) -> Iterator:
    """The mesh that fills a simulated world, as this rank sees it."""
    with engine.simulated_world(rank, math.prod(mesh_shape)):
        yield engine.init_device_mesh("cpu", mesh_shape, mesh_dim_names=("a", "b")[: len(mesh_shape)])


def sent(engine, mesh, source: tuple[str, ...], target: tuple[str, ...], size: tuple[int, int] = SIZE):
    """The collectives that this rank starts on the way, and the shape of what it holds in the end."""
    before, after = ([KINDS[kind](engine) for kind in kinds] for kinds in (source, target))
    tensor = engine.distribute_tensor(torch.ones(size), mesh, before)
    with torch.no_grad(), trace.collectives() as record:
        found = engine.redistribute(tensor, mesh, after)
    assert list(found.placements) == after
    return record, tuple(found.to_local().shape)


@contract("DT-0-04")
@pytest.mark.parametrize(("source", "target"), itertools.product(KINDS, WHOLE), ids=lambda kind: kind)
def test_plan_along_one_mesh_dimension(engine, source, target):
    """Each pair costs one collective, over all ranks of the dimension, or none."""
    with meshed(engine, (4,)) as mesh:
        record, shape = sent(engine, mesh, (source,), (target,))
    assert record.ops() == [op for op, pairs in PLANS.items() if (source, target) in pairs]
    assert record.ops(over=(0, 1, 2, 3)) == record.ops()
    assert shape == {"R": (12, 24), "S0": (3, 24), "S1": (12, 6)}[target]


@contract("DT-0-04")
def test_terms_that_stay_terms_send_nothing(engine):
    """Partial to the same Partial costs nothing and leaves the terms alone."""
    with meshed(engine, (4,)) as mesh:
        for kind in PARTIAL:
            record, shape = sent(engine, mesh, (kind,), (kind,))
            assert (record.ops(), shape) == ([], SIZE), kind


@contract("DT-0-04")
@pytest.mark.parametrize("sharing", SHARING)
def test_same_placements_send_nothing(engine, sharing):
    """On a mesh of two dimensions too, what does not change costs nothing."""
    with meshed(engine, (2, 2)) as mesh:
        for kinds in SHARING[sharing]:
            assert sent(engine, mesh, kinds, kinds)[0].ops() == [], str(kinds)


@contract("DT-0-04")
@pytest.mark.parametrize("op", PLANS)
def test_plan_along_one_of_two_mesh_dimensions(engine, op):
    """A change along one mesh dimension costs what it costs alone, among the ranks of that dimension."""
    with meshed(engine, (2, 3), rank=4) as mesh:
        for (source, target), other in itertools.product(PLANS[op], WHOLE):
            if other == "R" or other not in (source, target):
                record, _ = sent(engine, mesh, (other, source), (other, target))
                assert [(one.op, one.ranks) for one in record] == [(op, (3, 4, 5))], f"{source} to {target} by {other}"
                record, _ = sent(engine, mesh, (source, other), (target, other))
                assert [(one.op, one.ranks) for one in record] == [(op, (1, 4))], f"{source} to {target} by {other}"


@contract("DT-0-04")
@pytest.mark.parametrize("sharing", SHARING)
def test_only_what_a_rank_lacks_is_sent(engine, sharing):
    """Something is sent if and only if some rank is to hold an element that it does not hold."""
    pairs = list(itertools.product(SHARING["apart"], SHARING[sharing]))
    if sharing == "shared":
        pairs += [(target, source) for source, target in pairs] + list(itertools.product(SHARING["shared"], repeat=2))
    with meshed(engine, (2, 2)) as mesh:
        for source, target in pairs:
            before, after = ([KINDS[kind](engine) for kind in kinds] for kinds in (source, target))
            lacks = any(
                held(SIZE, (2, 2), place, after) - held(SIZE, (2, 2), place, before) for place in coordinates((2, 2))
            )
            record, _ = sent(engine, mesh, source, target)
            assert bool(record.ops()) == lacks, f"{source} to {target}: {record.lines()}"


@contract("DT-0-04")
@pytest.mark.parametrize("kind", PARTIAL)
def test_terms_are_reduced_once(engine, kind):
    """Wherever the terms of one mesh dimension go, exactly one reduction joins them, among the ranks that have them."""
    with meshed(engine, (2, 3), rank=4) as mesh:
        for other, target in itertools.product(WHOLE, SHARING["apart"]):
            record, _ = sent(engine, mesh, (other, kind), target)
            reductions = [one.ranks for one in record if one.op in ("all_reduce", "reduce_scatter")]
            assert reductions == [(3, 4, 5)], f"{other} and {kind} to {target}: {record.lines()}"


@contract("DT-0-04")
@pytest.mark.parametrize("size", [(7, 24), (2, 24), (0, 24)], ids=["uneven", "empty_shards", "empty"])
def test_plan_is_the_same_on_every_rank(engine, size):
    """Of a tensor that the ranks hold in parts of different sizes, all start the same collectives."""
    for rank in range(4):
        with meshed(engine, (4,), rank) as mesh:
            record, shape = sent(engine, mesh, ("S0",), ("R",), size)
            assert (record.ops(), shape) == (["all_gather"], size), f"rank {rank}"
