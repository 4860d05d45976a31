"""Experts put on ranks: their parameters divided, and rows dispatched and combined around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard

from hyper_parallel_tests.engines.torch_native.expert_parallel.experts import local
from hyper_parallel_tests.engines.torch_native.expert_parallel.fused import fused_experts
from hyper_parallel_tests.engines.torch_native.expert_parallel.movement import (
    combine_tokens,
    dispatch_tokens,
    experts_of_rank,
    send_back,
)

__all__ = ["ExpertParallel", "ExpertTensorParallel"]

_HIDDEN_DIM = {"gate": 1, "up": 1, "down": 2}


class ExpertParallel:
    """See the port. The vocabulary is HyperParallel's and TorchTitan's."""

    def __init__(
        self, token_dispatcher: str = "all_to_all", async_combine: bool = False, *, fused: bool = False, chunks: int = 1
    ) -> None:
        if token_dispatcher != "all_to_all":
            raise ValueError(f"unknown token dispatcher {token_dispatcher!r}: expected all_to_all")
        if chunks < 1 or (chunks > 1 and not fused):
            raise ValueError(
                f"chunks={chunks} with fused={fused}: expected 1, or more with fused=True, since a module computes "
                "with all of its experts at once"
            )
        self.combine = send_back if async_combine else combine_tokens
        self.fused, self.chunks = fused, chunks

    def apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Divides ``module`` in place and returns it."""
        _divide(module, device_mesh, lambda name: [Shard(0)])
        compute, combine, chunks = type(module).forward, self.combine, self.chunks

        def composed(self: nn.Module, rows: Tensor, counts: Tensor) -> Tensor:
            there = dispatch_tokens(rows, counts, device_mesh)
            return combine(compute(self, there.rows, there.counts), there)

        def fused(self: nn.Module, rows: Tensor, counts: Tensor) -> Tensor:
            matrices = (local(one) for one in (self.gate, self.up, self.down))
            return fused_experts(rows, counts, *matrices, device_mesh, chunks=chunks)

        return _run(module, fused if self.fused else composed)


class ExpertTensorParallel:
    """See the port.

    Every rank of a tp group computes with its part of the hidden width what adds up to the output: rows are copied to
    the parts, whose gradients are summed; outputs are summed, and their gradient is copied. Source: Shoeybi et al.,
    "Megatron-LM", 2019, functions f and g.
    """

    def __init__(self, token_dispatcher: str = "all_to_all", async_combine: bool = False) -> None:
        self._along_ep = ExpertParallel(token_dispatcher, async_combine)

    def apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Divides ``module`` in place over a mesh (ep, tp) and returns it."""
        if device_mesh.ndim != 2:
            raise ValueError(f"expected a mesh of two dimensions, (ep, tp), found one of {device_mesh.ndim}")
        along_ep, along_tp = (device_mesh[name] for name in device_mesh.mesh_dim_names)
        width, parts = module.gate.shape[_HIDDEN_DIM["gate"]], along_tp.size()
        if width % parts:
            raise ValueError(f"a hidden width of {width} does not divide among {parts} ranks: choose a divisor")
        _divide(module, device_mesh, lambda name: [Shard(0), Shard(_HIDDEN_DIM[name])])
        compute, combine, group = type(module).forward, self._along_ep.combine, along_tp.get_group()

        def forward(self: nn.Module, rows: Tensor, counts: Tensor) -> Tensor:
            there = dispatch_tokens(rows, counts, along_ep)
            made = compute(self, _CopyToParts.apply(there.rows, group), there.counts)
            return combine(_SumOfParts.apply(made, group), there)

        return _run(module, forward)


def _divide(module: nn.Module, device_mesh: DeviceMesh, placements: Callable[[str], Sequence[Placement]]) -> None:
    """Puts this rank's part of each parameter in its place, when all are known to divide; nothing is sent."""
    held = [(owner, *one) for owner in module.modules() for one in owner.named_parameters(recurse=False)]
    for _, name, parameter in held:
        if isinstance(parameter, DTensor):
            raise ValueError(f"parameter {name!r} is a distributed one: apply one style, once, to ordinary parameters")
        experts_of_rank(parameter.shape[0], device_mesh.size(0), 0)
    for owner, name, parameter in held:
        part = parameter.detach()
        for mesh_dim, placement in enumerate(placements(name)):
            part = part.chunk(device_mesh.size(mesh_dim), placement.dim)[device_mesh.get_local_rank(mesh_dim)]
        divided = DTensor.from_local(part.clone(), device_mesh, placements(name), run_check=False)
        owner.register_parameter(name, nn.Parameter(divided, requires_grad=parameter.requires_grad))


def _run(module: nn.Module, forward: Callable[..., Tensor]) -> nn.Module:
    """Has ``module`` run another forward; by its class, so that a copy of it runs the same."""
    kind = type(module)
    module.__class__ = type(f"Parallel{kind.__name__}", (kind,), {"forward": forward})
    return module


class _CopyToParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _SumOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = rows.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
