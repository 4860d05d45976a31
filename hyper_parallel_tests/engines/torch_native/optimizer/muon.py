"""Muon on matrices that are divided over ranks.

PyTorch's own takes distributed matrices too, and is Muon on them. But its Newton-Schulz multiplies the parts and adds
up products in bfloat16, so that a step is up to a tenth away from a single card's, and it fails on a matrix with fewer
rows than ranks. Here each rank has PyTorch's Newton-Schulz of the whole, and steps its own part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import _muon

from hyper_parallel_tests.engines.torch_native.optimizer.layouts import laid_out_as, local, whole


class Muon(torch.optim.Optimizer):
    """See the port."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 2e-2,
        weight_decay: float = 0.1,
        matched_adamw_rms: float = 0.2,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
    ) -> None:
        options = {
            "lr": lr,
            "weight_decay": weight_decay,
            "matched_adamw_rms": matched_adamw_rms,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
        }
        super().__init__(params, options)
        shapes = [tuple(one.shape) for group in self.param_groups for one in group["params"] if one.ndim != 2]
        if shapes:
            raise ValueError(f"Muon steps matrices, found parameters of shape {shapes}: give them to AdamW")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """See the port."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        direction = follow(state["momentum_buffer"], grad, group["momentum"], group["nesterov"])
        orthogonal = orthogonalised(direction, group["ns_steps"])
        size = group["lr"] * group["matched_adamw_rms"] * math.sqrt(max(parameter.shape))
        own = local(parameter)
        own.mul_(1 - group["lr"] * group["weight_decay"])
        own.add_(local(orthogonal), alpha=-size)


def follow(momentum: Tensor, grad: Tensor, rate: float, nesterov: bool) -> Tensor:
    """Brings the momentum up to date, in place, and gives the direction of the step; element by element."""
    local(momentum).lerp_(local(grad), 1 - rate)
    if not nesterov:
        return momentum
    ahead = local(grad).lerp(local(momentum), rate)
    if not isinstance(grad, DTensor):
        return ahead
    return DTensor.from_local(
        ahead, grad.device_mesh, grad.placements, run_check=False, shape=grad.shape, stride=grad.stride()
    )


def orthogonalised(direction: Tensor, ns_steps: int) -> Tensor:
    """The whole matrix orthogonalised in bfloat16, laid out as the direction is; collective where that is divided."""
    found = _muon._zeropower_via_newtonschulz(
        whole(direction), (_muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C), ns_steps, _muon.EPS
    )
    return laid_out_as(direction, found)
