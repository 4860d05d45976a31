"""Losses that keep a router balanced and its logits small."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from hyper_parallel_tests.engines.torch_native.expert_parallel.routing import LEAST_SUM

__all__ = ["attach_auxiliary_loss", "load_balancing_loss", "router_z_loss", "summed"]


def load_balancing_loss(scores: Tensor, experts: Tensor, *, device_mesh: DeviceMesh | None = None) -> Tensor:
    """See the port; for T tokens, E * sum_e (assignments of e / (T * k)) * (sum of e's scores / T)."""
    num_experts, top_k = scores.shape[1], experts.shape[1]
    counts = summed(experts.flatten().bincount(minlength=num_experts), device_mesh)
    assignments = counts.sum().clamp(min=1)
    likely = (scores / scores.sum(-1, keepdim=True).clamp(min=LEAST_SUM)).sum(0) / (assignments / top_k)
    return num_experts * (counts / assignments * likely).sum()


def router_z_loss(logits: Tensor, *, device_mesh: DeviceMesh | None = None) -> Tensor:
    """See the port."""
    tokens = summed(torch.tensor(len(logits), device=logits.device), device_mesh)
    return logits.logsumexp(-1).square().sum() / tokens.clamp(min=1)


def attach_auxiliary_loss(tensor: Tensor, loss: Tensor, *, scale: float = 1.0) -> Tensor:
    """See the port."""
    return _Attached.apply(tensor, loss, scale)


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.of_loss = torch.full_like(loss, scale)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return grad, ctx.of_loss, None


def summed(counts: Tensor, device_mesh: DeviceMesh | None) -> Tensor:
    """Counts of all ranks of a mesh of one dimension; in place."""
    if device_mesh is not None:
        dist.all_reduce(counts, group=device_mesh.get_group())
    return counts
