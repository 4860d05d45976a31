"""Redistribution on a mesh of 2 x 2, every pair of placements: values and gradients are those of the full tensor."""

from __future__ import annotations

import itertools

import pytest

from hyper_parallel_tests.domains.dtensor.pairs import EVEN, check_redistribution
from hyper_parallel_tests.harness import contract

WHOLE = list(itertools.product(("R", "S0", "S1"), repeat=2))
APART = [kinds for kinds in WHOLE if kinds[0] != kinds[1] or kinds[0] == "R"]
SHARED = [("S0", "S0"), ("S1", "S1")]
TERMS = [kinds for kinds in itertools.product(("R", "S0", "S1", "P"), repeat=2) if "P" in kinds]
OTHER_TERMS = [("Pavg", "S0"), ("S1", "Pavg"), ("Pavg", "Pavg"), ("Pmax", "R"), ("S0", "Pmax"), ("Pmax", "Pmax")]

PAIRS = {
    "parts": list(itertools.product(APART, APART)),
    "to_parts_of_parts": list(itertools.product(APART, SHARED)),
    "from_parts_of_parts": list(itertools.product(SHARED, WHOLE)),
    "terms": list(itertools.product(TERMS, APART)),
    "terms_to_parts_of_parts": list(itertools.product(TERMS, SHARED)),
    "other_terms": list(itertools.product(OTHER_TERMS, APART)),
}


@contract("DT-2-01")
@pytest.mark.parametrize("name", PAIRS)
def test_every_pair(engine, world, name):
    """Each rank gets its part of the full tensor, and the gradient that comes back is the full one."""
    for source, target in PAIRS[name]:
        check_redistribution(engine, world, world.mesh(dp=2, tp=2), EVEN, "-".join(source), "-".join(target))


@contract("DT-2-01")
@pytest.mark.parametrize("name", PAIRS)
def test_parts_of_different_sizes(engine, world, name):
    """Where ranks hold parts of different sizes, empty ones too, nothing is lost and nothing is counted twice."""
    for source, target in PAIRS[name]:
        check_redistribution(engine, world, world.mesh(dp=2, tp=2), (5, 3), "-".join(source), "-".join(target))
