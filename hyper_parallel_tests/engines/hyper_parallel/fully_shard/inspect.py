"""What a rank holds of its managed parameters, read from the library's state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hyper_parallel_tests.engines.hyper_parallel.fully_shard.wrap import HSDPModule
from hyper_parallel_tests.engines.hyper_parallel.library import find
from hyper_parallel_tests.engines.port import Unsupported
from hyper_parallel_tests.engines.port.fully_shard import ManagedParameter

_DTensor = find("hyper_parallel:DTensor")


def managed_parameters(module: nn.Module) -> list[ManagedParameter]:
    """What ``module`` and its children hold of their managed parameters; see the port.

    The library gathers and reduces each parameter by itself, so each is a group of its own.
    """
    prefixes = {child: name for name, child in module.named_modules()}
    found = []
    for unit, child in module.named_modules():
        if not isinstance(child, HSDPModule):
            continue
        for group, parameter in enumerate(child.hsdp_scheduler.hsdp_state.hsdp_params):
            owner = parameter._module_info
            if owner.module in prefixes:
                name = f"{prefixes[owner.module]}.{owner.param_name}".lstrip(".")
                found.append(_describe(parameter, name, unit, group))
    return found


def _describe(parameter: Any, name: str, unit: str, group: int) -> ManagedParameter:
    owner = parameter._module_info
    # With the policy's fp32 main gradient, optimizers are meant to read that one: `grad` is None.
    main_grad = getattr(parameter.sharded_param, "main_grad", None)
    grad = parameter.sharded_param.grad if main_grad is None else main_grad
    return ManagedParameter(
        name=name,
        unit=unit,
        group=group,
        full_shape=tuple(parameter._orig_size),
        shard_dim=parameter.hsdp_placement.dim if parameter.is_sharded else None,
        shard=_local(parameter.sharded_param),
        padded_shape=tuple(parameter.sharded_size),
        resident=_local(getattr(owner.module, owner.param_name)),
        grad=None if grad is None else _local(grad),
        pending_grad=_pending(parameter),
    )


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if isinstance(tensor, _DTensor) else tensor).detach()


def _pending(parameter: Any) -> torch.Tensor | None:
    if parameter.unsharded_accumulated_grad is not None:
        return parameter.unsharded_accumulated_grad
    return parameter._unsharded_param.grad if hasattr(parameter, "_unsharded_param") else None


if isinstance(HSDPModule, Unsupported):
    managed_parameters = HSDPModule
