"""The library's distributed tensors, and how they come to be."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.engines.hyper_parallel.library import offered, refuse
from hyper_parallel_tests.engines.hyper_parallel.placement import Partial, Replicate
from hyper_parallel_tests.engines.port import Unsupported


def _member(name: str) -> Any:
    return offered(
        f"hyper_parallel:{name}",
        f"hyper_parallel.core.dtensor.dtensor:{name}",
        f"hyper_parallel.core.dtensor:{name}",
        reason=f"this version of the library has no {name} for distributed tensors",
    )


DTensor = _member("DTensor")
SkipDTensorDispatch = _member("SkipDTensorDispatch")
distribute_module = _member("distribute_module")
_distribute_tensor = _member("distribute_tensor")

_where = offered(
    "hyper_parallel.core.dtensor._utils:compute_local_shape_and_global_offset",
    "hyper_parallel.core.utils:compute_local_shape_and_global_offset",
    reason="this version of the library does not tell where a part lies",
)


def compute_local_shape_and_global_offset(
    global_shape: Sequence[int], device_mesh: Any, placements: Sequence[Any]
) -> Any:
    """See the port."""
    return _where(global_shape, device_mesh, placements)


def distribute_tensor(
    tensor: Tensor, device_mesh: Any, placements: Sequence[Any], *, src_data_rank: int | None = None
) -> Any:
    """See the port."""
    return _call("distribute_tensor", _distribute_tensor, tensor, device_mesh, placements, src_data_rank=src_data_rank)


def from_local(
    local_tensor: Tensor, device_mesh: Any, placements: Sequence[Any], *, shape: Sequence[int] | None = None
) -> Any:
    """See the port."""
    return _call("from_local", DTensor.from_local, local_tensor, device_mesh, placements, shape=shape)


def redistribute(tensor: Any, device_mesh: Any, placements: Sequence[Any]) -> Any:
    """See the port."""
    return tensor.redistribute(device_mesh, placements)


def backward(tensor: Any, gradient: Tensor | Sequence[Tensor]) -> None:
    """See the port."""
    tensors, gradients = ([tensor], [gradient]) if isinstance(gradient, Tensor) else (tensor, gradient)
    parts = [_part_for_backward(*pair) for pair in zip(tensors, gradients, strict=True)]
    torch.autograd.backward([one.to_local() for one in tensors], parts)


def _part_for_backward(tensor: Any, gradient: Tensor) -> Tensor:
    """The library sums over replicas, so each gets a share, as each term of an average; a term of a sum gets all."""
    sizes = zip(tensor.device_mesh.mesh_shape, tensor.placements, strict=True)
    shares = math.prod(size for size, placement in sizes if _has_share(placement))
    whole = [Replicate() if placement.is_partial() else placement for placement in tensor.placements]
    return _distribute_tensor(gradient, tensor.device_mesh, whole).to_local() / shares


def _has_share(placement: Any) -> bool:
    return placement.is_replicate() or placement.is_partial("avg")


def full_gradient(tensor: Any) -> Tensor | None:
    """See the port. What the library leaves on replicas are terms, as follows from the shares in ``backward``.

    Of a tensor in terms it leaves the gradient of each term: of a sum that is the whole, of an average a share.
    """
    grad = tensor.grad
    if grad is None or isinstance(grad, DTensor):
        return None if grad is None else grad.full_tensor()
    terms = [_of_gradient(placement) for placement in tensor.placements]
    return DTensor.from_local(grad, tensor.device_mesh, terms).full_tensor()


def _of_gradient(placement: Any) -> Any:
    if _has_share(placement):
        return Partial("sum")
    return Replicate() if placement.is_partial() else placement


def _factory(name: str) -> Any:
    make = _member(name)
    if isinstance(make, Unsupported):
        return make

    def factory(
        *args: Any, device_mesh: Any, placements: Sequence[Any], dtype: Any = None, requires_grad: bool = False
    ) -> Any:
        """See the port."""
        where = {"device_mesh": device_mesh, "placements": placements}
        return _call(name, make, *args, **where, dtype=dtype, requires_grad=requires_grad or None)

    return factory


ones = _factory("ones")
zeros = _factory("zeros")
full = _factory("full")
empty = _factory("empty")
rand = _factory("rand")
randn = _factory("randn")


def _call(name: str, member: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Calls with the options that are given; one that the library does not take is not offered."""
    given = {key: value for key, value in options.items() if value is not None}
    taken = inspect.signature(member).parameters
    for key in given:
        if key not in taken and not any(one.kind is one.VAR_KEYWORD for one in taken.values()):
            refuse(name, f"this version of the library takes no {key}")
    return member(*args, **given)
