"""Saves on any mesh and loads on any other, of up to two dozen ranks: a property test."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hyper_parallel_tests.domains.distributed_checkpoint.plans import assert_journey
from hyper_parallel_tests.harness import contract, properties

LARGEST = 24
PROFILE = settings(properties.PROFILE, max_examples=20, report_multiple_bugs=False)

mesh_shapes = (
    st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple).filter(lambda shape: math.prod(shape) <= LARGEST)
)


@st.composite
def journeys(draw: Any) -> tuple[Any, Any, list[tuple[Any, Any, Any]]]:
    """Mesh shapes of a save and a load, and for each tensor its size and what the dimensions of either mesh divide."""
    meshes = draw(mesh_shapes), draw(mesh_shapes)
    tensors = []
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.lists(st.integers(0, 9), min_size=0, max_size=3).map(tuple))
        dims = st.none() | st.integers(0, len(size) - 1) if size else st.none()
        sides = [draw(st.none() | st.tuples(*[dims] * len(mesh))) for mesh in meshes]
        tensors.append((size, *sides))
    return *meshes, tensors


@contract("CK-0-01")
def test_any_mesh_to_any_mesh(engine):
    """Each element of each tensor is written once, and read once by each rank that wants it, whatever divides it."""

    @PROFILE
    @given(journey=journeys())
    def each(journey):
        assert_journey(engine, *journey)

    each()
