"""Distributed tensors: HyperParallel's."""

from hyper_parallel_tests.engines.hyper_parallel.dtensor.operators import apply_operator, register_sharding
from hyper_parallel_tests.engines.hyper_parallel.dtensor.tensors import (
    DTensor,
    SkipDTensorDispatch,
    backward,
    compute_local_shape_and_global_offset,
    distribute_module,
    distribute_tensor,
    empty,
    from_local,
    full,
    full_gradient,
    ones,
    rand,
    randn,
    redistribute,
    zeros,
)

__all__ = [
    "DTensor",
    "SkipDTensorDispatch",
    "apply_operator",
    "backward",
    "compute_local_shape_and_global_offset",
    "distribute_module",
    "distribute_tensor",
    "empty",
    "from_local",
    "full",
    "full_gradient",
    "ones",
    "rand",
    "randn",
    "redistribute",
    "register_sharding",
    "zeros",
]
