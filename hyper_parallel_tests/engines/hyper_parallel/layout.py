"""Layouts: HyperParallel's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hyper_parallel_tests.engines.hyper_parallel.library import offered

__all__ = ["Layout", "layout_from_placements"]

Layout = offered(
    "hyper_parallel:Layout",
    "hyper_parallel.core.dtensor.layout:Layout",
    "hyper_parallel.core.layout:Layout",
    reason="this version of the library has no layouts",
)


def layout_from_placements(device_mesh: Any, placements: Sequence[Any], ndim: int) -> Any:
    """See the port. The library's own distributed tensors make their layouts so."""
    layout = Layout.from_device_mesh(device_mesh)(placements)
    layout.placement_to_tensor_map(ndim)
    return layout
