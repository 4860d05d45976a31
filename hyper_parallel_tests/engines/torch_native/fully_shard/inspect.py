"""What a rank holds of its managed parameters, read from FSDP2's state."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.fsdp._fully_shard._fsdp_common import HSDPMeshInfo
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.engines.port.fully_shard import ManagedParameter


def managed_parameters(module: nn.Module) -> list[ManagedParameter]:
    """What ``module`` and its children hold of their managed parameters; see the port."""
    prefixes = {child: name for name, child in module.named_modules()}
    found, seen = [], set()
    for unit, child in module.named_modules():
        if not isinstance(child, fsdp.FSDPModule) or (state := child._get_fsdp_state()) in seen:
            continue
        seen.add(state)
        for index, group in enumerate(state._fsdp_param_groups):
            partial = _partial_gradients(group)
            for parameter in group.fsdp_params:
                for name in _names(parameter, prefixes)[:1]:
                    found.append(_describe(parameter, name, unit, index, partial.get(parameter)))
    return found


def _names(parameter: FSDPParam, prefixes: dict[nn.Module, str]) -> list[str]:
    """Dotted names of a parameter; none where another module of the same unit has it."""
    info = parameter._module_info
    homes = [(info.module, info.param_name), *zip(info.shared_modules, info.shared_param_names, strict=True)]
    return [f"{prefixes[home]}.{name}".lstrip(".") for home, name in homes if home in prefixes]


def _describe(parameter: FSDPParam, name: str, unit: str, group: int, partial: torch.Tensor | None) -> ManagedParameter:
    owner = parameter._module_info
    grad = parameter.sharded_param.grad
    replicated = isinstance(parameter.mesh_info, HSDPMeshInfo) and parameter.mesh_info.shard_mesh_size == 1
    return ManagedParameter(
        name=name,
        unit=unit,
        group=group,
        full_shape=tuple(parameter._orig_size),
        shard_dim=None if replicated else parameter.fsdp_placement.dim,
        shard=_local(parameter.sharded_param),
        padded_shape=tuple(parameter.padded_sharded_param_size),
        resident=_local(getattr(owner.module, owner.param_name)),
        grad=None if grad is None else _local(grad),
        pending_grad=_unreduced(parameter) if partial is None else partial,
    )


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).detach()


def _unreduced(parameter: FSDPParam) -> torch.Tensor | None:
    if parameter.unsharded_accumulated_grad is not None:
        return parameter.unsharded_accumulated_grad
    return parameter._unsharded_param.grad if hasattr(parameter, "_unsharded_param") else None


def _partial_gradients(group: FSDPParamGroup) -> dict[FSDPParam, torch.Tensor]:
    """Each parameter's part of the flat buffer in which FSDP2 keeps what lacks the all-reduce."""
    flat = group._partial_reduce_output
    if flat is None:
        return {}
    trainable = [parameter for parameter in group.fsdp_params if parameter.sharded_param.requires_grad]
    padded = [parameter.padded_sharded_param_size.numel() for parameter in trainable]
    if sum(padded) != flat.numel():
        raise RuntimeError(
            f"the partly reduced buffer of {group} has {flat.numel()} elements, those that train need "
            f"{sum(padded)}: one had no gradient, so the parts cannot be told apart; use comm_fusion=False"
        )
    return dict(zip(trainable, _views(flat, trainable, padded), strict=True))


def _views(flat: torch.Tensor, parameters: list[FSDPParam], padded: list[int]) -> Iterator[torch.Tensor]:
    for parameter, part in zip(parameters, flat.split(padded), strict=True):
        yield part[: parameter.sharded_size.numel()].view(parameter.sharded_size)
