"""A plan put on a module by hooks and distributed parameters, and taken off again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from hyper_parallel_tests.engines.torch_native.shard.mapping import Inputs, lay_out_output, local_parts
from hyper_parallel_tests.engines.torch_native.shard.plan import (
    Layouts,
    Placements,
    ShardingPlan,
    layouts_of,
    resolve,
)


class _Injection:
    """A hook of a plan, which is known by its type when it is to be taken off."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Injection:
        # A copy of a module has the same mesh, whose groups cannot be copied.
        return self


class InputInjection(_Injection):
    """Forward pre-hook with keyword arguments."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._inputs.lay_out(args, kwargs)


class OutputInjection(_Injection):
    """Forward hook."""

    def __init__(self, layouts: Layouts | None, local: bool, device_mesh: DeviceMesh) -> None:
        self._layouts, self._local, self._mesh = layouts, local, device_mesh

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if self._layouts is not None:
            output = lay_out_output(output, self._layouts, self._mesh)
        return local_parts(output) if self._local else output


def shard_module(
    model: nn.Module | Callable[..., Any], device_mesh: DeviceMesh, sharding_plan: ShardingPlan
) -> nn.Module | Callable[..., Any]:
    """See the port."""
    if not isinstance(sharding_plan, ShardingPlan):
        raise TypeError(f"expected a ShardingPlan, got {type(sharding_plan).__name__}")
    if not callable(model):
        raise TypeError(f"expected a module or a function, got {type(model).__name__}")
    if not isinstance(model, nn.Module):
        return _shard_function(model, device_mesh, sharding_plan)
    resolved = resolve(model, device_mesh, sharding_plan)
    modules = dict(model.named_modules(remove_duplicate=False))
    # All that can be wrong with a plan shows before anything is changed.
    inputs = {name: Inputs(modules[name].forward, one, device_mesh) for name, one in resolved.inputs.items()}
    for name, placements in resolved.parameters.items():
        distribute_parameter(model, name, placements, device_mesh)
    for name, one in inputs.items():
        take_off(modules[name], InputInjection)
        modules[name].register_forward_pre_hook(InputInjection(one), with_kwargs=True)
    for name in dict.fromkeys((*resolved.outputs, *resolved.local)):
        take_off(modules[name], OutputInjection)
        hook = OutputInjection(resolved.outputs.get(name), name in resolved.local, device_mesh)
        modules[name].register_forward_hook(hook)
    return model


def remove_sharding_plan(module: nn.Module) -> nn.Module:
    """See the port."""
    for one in module.modules():
        take_off(one, InputInjection)
        take_off(one, OutputInjection)
    for _, param in list(module.named_parameters()):
        if isinstance(param, DTensor):
            _put(module, param, nn.Parameter(param.detach().full_tensor(), param.requires_grad))
    return module


def distribute_parameter(model: nn.Module, name: str, placements: Placements, device_mesh: DeviceMesh) -> None:
    """Makes one parameter a distributed one, under all names that it has."""
    old = model.get_parameter(name)
    if isinstance(old, DTensor):
        value = old.detach().redistribute(device_mesh, placements)
    else:
        value = distribute_tensor(old.detach(), device_mesh, placements, src_data_rank=None)
    _put(model, old, nn.Parameter(value, old.requires_grad))


def take_off(module: nn.Module, kind: type[_Injection]) -> None:
    """Removes hooks of one kind from one module. By type: a handle would not find them in a copy of the module."""
    for hooks, flags in (
        (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
        (module._forward_hooks, module._forward_hooks_with_kwargs),
    ):
        for number in [number for number, hook in hooks.items() if isinstance(hook, kind)]:
            del hooks[number]
            flags.pop(number, None)


def _put(model: nn.Module, old: nn.Parameter, new: nn.Parameter) -> None:
    for module in model.modules():
        for name, param in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if param is old:
                setattr(module, name, new)


def _shard_function(function: Callable[..., Any], device_mesh: DeviceMesh, plan: ShardingPlan) -> Callable[..., Any]:
    given = {**(plan.input_plan or {}), **(plan.output_plan or {})}
    strange = [*(plan.plan or ()), *(given.keys() - {"input", "output"}), *filter(None, plan.return_local_tensor or ())]
    if strange:
        raise ValueError(f"a function has neither parameters nor modules, but the plan names {', '.join(strange)}")
    inputs = Inputs(function, layouts_of(given["input"], device_mesh), device_mesh) if "input" in given else None
    outputs = layouts_of(given["output"], device_mesh) if "output" in given else None

    @functools.wraps(function)
    def sharded(*args: Any, **kwargs: Any) -> Any:
        if inputs is not None:
            args, kwargs = inputs.lay_out(args, kwargs)
        output = function(*args, **kwargs)
        if outputs is not None:
            output = lay_out_output(output, outputs, device_mesh)
        return local_parts(output) if plan.return_local_tensor else output

    return sharded
