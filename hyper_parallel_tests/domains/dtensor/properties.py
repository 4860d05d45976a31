"""Property tests: how many examples, and what they are made of."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from hyper_parallel_tests.harness import properties

# An example here is a whole mesh, of which each rank is looked at.
PROFILE = settings(properties.PROFILE, max_examples=25, report_multiple_bugs=False)


def mesh_shapes(*, smallest: int = 1, ranks: int = 8) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of meshes of one to three dimensions and at most so many ranks."""
    sizes = st.lists(st.integers(smallest, 4), min_size=1, max_size=3)
    return sizes.map(tuple).filter(lambda shape: math.prod(shape) <= ranks)


@st.composite
def divisions(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], list[int | None]]:
    """A mesh shape, a tensor's size, and for each mesh dimension the tensor dimension that it divides, or None."""
    shape = draw(mesh_shapes())
    size = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple))
    dims = draw(st.lists(st.none() | st.integers(0, len(size) - 1), min_size=len(shape), max_size=len(shape)))
    return shape, size, dims


@st.composite
def axis_orders(draw: Any, ndim: int = 3) -> tuple[tuple[int, ...], list[list[int]]]:
    """A mesh shape, and for each dimension of a tensor the mesh dimensions that divide it, outermost division first."""
    shape = draw(mesh_shapes(smallest=2))
    order = draw(st.permutations(range(len(shape))))
    owners = draw(st.lists(st.none() | st.integers(0, ndim - 1), min_size=len(shape), max_size=len(shape)))
    return shape, [[axis for axis, owner in zip(order, owners, strict=True) if owner == dim] for dim in range(ndim)]
