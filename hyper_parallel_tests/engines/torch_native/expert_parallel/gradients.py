"""Gradients of a model of which the experts are divided and everything else is on all ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.engines.torch_native.expert_parallel.experts import local

__all__ = ["synchronize_moe_gradients"]


@torch.no_grad()
def synchronize_moe_gradients(module: nn.Module, device_mesh: DeviceMesh, *, reduce_op_type: str = "avg") -> None:
    """See the port.

    Dispatch has brought an expert the tokens of all ranks it is divided over, so its gradient is their sum already.
    """
    if reduce_op_type not in ("avg", "sum"):
        raise ValueError(f"unknown reduce op type {reduce_op_type!r}: expected avg or sum")
    parameters = [one for one in module.parameters() if one.requires_grad]
    present = torch.tensor([one.grad is not None for one in parameters], dtype=torch.int64).to(device_mesh.device_type)
    for name in device_mesh.mesh_dim_names:
        dist.all_reduce(present, dist.ReduceOp.MAX, device_mesh.get_group(name))
    for parameter, somewhere in zip(parameters, present.tolist(), strict=True):
        if not somewhere:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradient = local(parameter.grad)
        for name in copied_over(parameter, device_mesh):
            dist.all_reduce(gradient, group=device_mesh.get_group(name))
        if reduce_op_type == "avg":
            gradient /= device_mesh.size()


def copied_over(parameter: Tensor, device_mesh: DeviceMesh) -> list[str]:
    """The mesh dimensions whose ranks all have this part of the parameter."""
    if not isinstance(parameter, DTensor):
        return list(device_mesh.mesh_dim_names)
    pairs = zip(parameter.device_mesh.mesh_dim_names, parameter.placements, strict=True)
    divided = {name for name, placement in pairs if not placement.is_replicate()}
    return [name for name in device_mesh.mesh_dim_names if name not in divided]
