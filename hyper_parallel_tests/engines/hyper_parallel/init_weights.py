"""Deferred initialization: HyperParallel's."""

from __future__ import annotations

from hyper_parallel_tests.engines.hyper_parallel.library import offered, platform
from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["init_empty_weights", "init_on_device", "init_parameters"]

_LATER = "this version of the library leaves it to `with torch.device('meta')`"

init_empty_weights = offered("hyper_parallel:init_empty_weights", reason=_LATER)
init_on_device = offered("hyper_parallel:init_on_device", reason=_LATER)

# Where PyTorch's platform has nothing of its own, the function checks its arguments and returns.
if platform() is None or "init_parameters" in vars(type(platform())):
    init_parameters = offered("hyper_parallel:init_parameters", reason=_LATER)
else:
    init_parameters = Unsupported("the library initializes parameters on MindSpore only")
