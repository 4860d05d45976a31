"""Gradient clipping of torch_native: PyTorch's own for the gradients of one mesh, joined over meshes and stages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


class _Holder(NamedTuple):
    """What PyTorch takes for a parameter: it reads no more than the gradient."""

    grad: Tensor


@torch.no_grad()
def clip_grad_norm_(
    parameters: nn.Module | Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    pp_mesh: DeviceMesh | None = None,
) -> Tensor:
    """Scales all gradients by one factor; see the port."""
    parts = _by_mesh([one for one in _tensors(parameters) if one.requires_grad])
    norm = get_total_norm([_norm(those, norm_type, foreach) for those in parts], norm_type)
    if pp_mesh is not None:
        norm = get_total_norm(_of_all_stages(norm, pp_mesh), norm_type)
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(
            f"the gradients' norm of order {norm_type} is {norm.item()}, so they cannot be clipped; skip the step, "
            "or scale by it all the same with error_if_nonfinite=False"
        )
    for those in parts:
        held = [_Holder(grad) for one in those if (grad := _gradient(one)) is not None]
        clip_grads_with_norm_(held, max_norm, norm, foreach)
    return norm


def _tensors(parameters: nn.Module | Tensor | Iterable[Tensor]) -> list[Tensor]:
    if isinstance(parameters, nn.Module):
        return list(parameters.parameters())
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def _by_mesh(parameters: list[Tensor]) -> list[list[Tensor]]:
    """Parts of the list whose parameters lie on one mesh, or on none: DTensors of two meshes do not mix.

    Parameters tell the mesh and not their gradients, so that a rank without gradients joins in.
    """
    parts: dict[DeviceMesh | None, list[Tensor]] = {}
    for one in parameters:
        parts.setdefault(one.device_mesh if isinstance(one, DTensor) else None, []).append(one)
    return list(parts.values())


def _norm(parameters: list[Tensor], norm_type: float, foreach: bool | None) -> Tensor:
    # A gradient that other ranks have and this one lacks is zero here: the norms of DTensors are joined
    # gradient by gradient, so each rank must bring as many.
    found = [(one, _gradient(one)) for one in parameters]
    gradients = [torch.zeros_like(one) if grad is None else grad for one, grad in found]
    norm = get_total_norm(gradients, norm_type, foreach=foreach)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _gradient(parameter: Tensor) -> Tensor | None:
    main_grad = getattr(parameter, "main_grad", None)
    if main_grad is None:
        return parameter.grad
    if isinstance(parameter, DTensor) and not isinstance(main_grad, DTensor):
        raise TypeError(
            f"the main_grad of a parameter on {parameter.device_mesh} is a plain tensor of shape "
            f"{tuple(main_grad.shape)}; make it a DTensor of the parameter's placements {parameter.placements}"
        )
    return main_grad


def _of_all_stages(norm: Tensor, pp_mesh: DeviceMesh) -> list[Tensor]:
    # Gathered and not reduced: a maximum over ranks may lose a NaN, and each rank has the same terms to add.
    group = pp_mesh.get_group()
    norms = [torch.empty_like(norm) for _ in range(group.size())]
    dist.all_gather(norms, norm, group=group)
    return norms
