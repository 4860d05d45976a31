"""Redistribution along one mesh dimension: values and gradients are those of the full tensor."""

from __future__ import annotations

import itertools

import pytest

from hyper_parallel_tests.domains.dtensor.pairs import EVEN, check_redistribution
from hyper_parallel_tests.domains.dtensor.setting import PLACEMENTS
from hyper_parallel_tests.harness import contract

TARGETS = ("R", "S0", "S1")


@contract("DT-2-01")
@pytest.mark.parametrize(("source", "target"), itertools.product(PLACEMENTS, TARGETS), ids=lambda kind: kind)
def test_every_pair(engine, world, source, target):
    """Each rank gets its part of the full tensor, and the gradient that comes back is the full one."""
    check_redistribution(engine, world, world.mesh(tp=world.size), EVEN, source, target)


@contract("DT-2-01")
@pytest.mark.parametrize("source", PLACEMENTS)
def test_parts_of_different_sizes(engine, world, source):
    """Where ranks hold parts of different sizes, empty ones too, nothing is lost and nothing is counted twice."""
    for target, size in itertools.product(TARGETS, [(7, 5), (1, 3), (5, 1)]):
        check_redistribution(engine, world, world.mesh(tp=world.size), size, source, target)
