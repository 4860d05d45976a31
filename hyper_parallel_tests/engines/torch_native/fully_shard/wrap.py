"""The ``fully_shard`` call."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from hyper_parallel_tests.engines.torch_native.fully_shard.module import HSDPModule, adopt
from hyper_parallel_tests.engines.torch_native.fully_shard.placement import PlacementFn, Placements
from hyper_parallel_tests.engines.torch_native.fully_shard.policies import MixedPrecisionPolicy, OffloadPolicy


def fully_shard(
    module: nn.Module | list[nn.Module],
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int = True,
    shard_placement_fn: PlacementFn | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),  # noqa: B008 - immutable
    offload_policy: OffloadPolicy = OffloadPolicy(),  # noqa: B008 - immutable
    ignored_params: set[nn.Parameter] | None = None,
    replicate_params: set[nn.Parameter] | None = None,
    comm_fusion: bool = False,
) -> HSDPModule | list[HSDPModule]:
    """Wraps ``module`` in place and returns it; see the port."""
    modules = _modules(module)
    ignored, replicated = set(ignored_params or ()), set(replicate_params or ())
    _refuse_contradictions(modules, mp_policy, ignored, replicated)
    mesh = mesh or _world_mesh()
    placement_fn = Placements(mesh, shard_placement_fn, replicated) if shard_placement_fn or replicated else None
    for unit in [modules] if comm_fusion else _independent_units(modules):
        fsdp.fully_shard(
            unit if len(unit) > 1 else unit[0],
            mesh=mesh,
            reshard_after_forward=reshard_after_forward,
            shard_placement_fn=placement_fn,
            mp_policy=mp_policy.to_fsdp(),
            offload_policy=offload_policy.to_fsdp(),
            ignored_params=ignored or None,
        )
        if not comm_fusion:
            _communicate_per_parameter(unit[0])
        for wrapped in unit:
            adopt(wrapped)
    return module


def _modules(module: nn.Module | list[nn.Module]) -> list[nn.Module]:
    modules = module if isinstance(module, list) else [module]
    if not modules:
        raise ValueError("fully_shard got an empty list: give it at least one module")
    for index, entry in enumerate(modules):
        if not isinstance(entry, nn.Module):
            raise TypeError(f"fully_shard takes a module or a list of modules, got {type(entry).__name__} at {index}")
        if any(entry in other.modules() for other in modules[:index] + modules[index + 1 :]):
            raise ValueError(f"module {index} of the list is, or lies inside, another one: wrap it in an earlier call")
    return modules


def _refuse_contradictions(
    modules: list[nn.Module],
    policy: MixedPrecisionPolicy,
    ignored: set[nn.Parameter],
    replicated: set[nn.Parameter],
) -> None:
    for module in modules:
        for name, parameter in module.named_parameters():
            if parameter in ignored and parameter in replicated:
                raise ValueError(f"{name} is in both ignored_params and replicate_params: take it out of one")
            if policy.apply_grad_on_fp32_main_grad and parameter not in ignored and parameter.dtype != torch.float32:
                raise ValueError(
                    f"apply_grad_on_fp32_main_grad needs parameters in fp32, but {name} is {parameter.dtype}"
                )


def _world_mesh() -> DeviceMesh:
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    return init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("world",))


def _independent_units(modules: list[nn.Module]) -> list[list[nn.Module]]:
    """Divides a list, but for modules that share a parameter: to FSDP2 that belongs to one call only."""
    units: list[tuple[set[nn.Parameter], list[nn.Module]]] = []
    for module in modules:
        parameters, members = set(module.parameters()), [module]
        for unit in [unit for unit in units if unit[0] & parameters]:
            units.remove(unit)
            parameters, members = unit[0] | parameters, unit[1] + members
        units.append((parameters, members))
    return [members for _, members in units]


def _communicate_per_parameter(module: nn.Module) -> None:
    """Divides the groups that FSDP2 made for one call so that each parameter has its own collectives."""
    state = fsdp.fully_shard.state(module)
    state._fsdp_param_groups[:] = [
        single for group in state._fsdp_param_groups for single in _one_group_per_parameter(group)
    ]


def _one_group_per_parameter(group: FSDPParamGroup) -> Iterable[FSDPParamGroup]:
    for parameter in group.fsdp_params:
        single = FSDPParamGroup(
            [],
            group.modules,
            group.mesh_info,
            group.post_forward_mesh_info,
            group.device,
            None,
            group.mp_policy,
            group.offload_policy,
        )
        single.fsdp_params = [parameter]
        yield single
