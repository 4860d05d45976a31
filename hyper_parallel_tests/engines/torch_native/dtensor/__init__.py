"""Distributed tensors of torch_native: PyTorch's DTensor.

This package adds what HyperParallel's API has and PyTorch lacks: redistribution between meshes, random factories on the
CPU, an operator rule that can be taken back, and operations on the local parts alone.
"""

from torch.distributed.tensor import DTensor, distribute_module

from hyper_parallel_tests.engines.torch_native.dtensor.cross_mesh import redistribute
from hyper_parallel_tests.engines.torch_native.dtensor.dispatch import SkipDTensorDispatch, register_sharding
from hyper_parallel_tests.engines.torch_native.dtensor.factories import (
    apply_operator,
    backward,
    compute_local_shape_and_global_offset,
    distribute_tensor,
    empty,
    from_local,
    full,
    full_gradient,
    ones,
    rand,
    randn,
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
