"""Distributed random numbers: HyperParallel's arithmetic of offsets, and the seeding that newer versions have."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hyper_parallel_tests.engines.hyper_parallel.library import find, offered
from hyper_parallel_tests.engines.port import Unsupported

__all__ = [
    "RNGStatesTracker",
    "distributed_dropout",
    "get_rng_state",
    "is_rng_supported_mesh",
    "manual_seed",
    "parallel_seed",
    "rng_offsets",
    "set_rng_state",
]

_MODULES = ("hyper_parallel.core.random", "hyper_parallel.core.dtensor.random")
_PYTORCHS = Unsupported("the library leaves the generators' states to PyTorch")


def _places(name: str) -> list[str]:
    return [f"{module}:{name}" for module in _MODULES]


_is_rng_supported_mesh = find(*_places("is_rng_supported_mesh"))
_tracker = find(*_places("OffsetBasedRNGTracker"))

manual_seed = offered(
    "hyper_parallel:manual_seed", *_places("manual_seed"), reason="this version of the library seeds no mesh"
)
parallel_seed = Unsupported("the library leaves it to its user which ranks have which seed")
distributed_dropout = Unsupported("the library has no dropout of distributed tensors")
RNGStatesTracker = Unsupported("the library has no named streams of random numbers")
get_rng_state = _PYTORCHS
set_rng_state = _PYTORCHS


def is_rng_supported_mesh(device_mesh: Any) -> bool:
    """See the port. Older versions of the library do not ask which mesh."""
    asked = inspect.signature(_is_rng_supported_mesh).parameters
    return _is_rng_supported_mesh(device_mesh) if asked else _is_rng_supported_mesh()


def rng_offsets(global_shape: Sequence[int], device_mesh: Any, placements: Sequence[Any]) -> tuple[int, int]:
    """See the port. On a state made here, since the library's tracker wants a device that has one."""
    tracker = object.__new__(_tracker)
    state = SimpleNamespace(offset=0)
    tracker._set_pre_op_offset(state, device_mesh, placements, tuple(global_shape))
    start = state.offset
    # What the library itself passes between the state and the old offset: the mesh, or in newer versions the shape.
    last = list(inspect.signature(tracker._set_post_op_offset).parameters)[1]
    tracker._set_post_op_offset(state, device_mesh if last == "device_mesh" else tuple(global_shape), 0)
    return start, state.offset


if _tracker is None:
    rng_offsets = Unsupported("this version of the library has no tracker of random states")
if _is_rng_supported_mesh is None:
    is_rng_supported_mesh = Unsupported("this version of the library does not say")
