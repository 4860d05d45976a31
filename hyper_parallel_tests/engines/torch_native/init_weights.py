"""Deferred initialization of torch_native: the meta device, and values drawn module by module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["init_empty_weights", "init_on_device", "init_parameters"]

_REGISTER_PARAMETER = nn.Module.register_parameter
_REGISTER_BUFFER = nn.Module.register_buffer


@contextmanager
def init_empty_weights(include_buffers: bool = False) -> Iterator[None]:
    """See the port."""
    with init_on_device("meta", include_buffers):
        yield


@contextmanager
def init_on_device(device: torch.device | str, include_buffers: bool = False) -> Iterator[None]:
    """See the port. PyTorch's ``with torch.device(...)`` moves buffers too, so registration is where it happens."""
    moved = WeakTensorKeyDictionary()

    def register_parameter(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        _REGISTER_PARAMETER(self, name, param)
        if param is not None:
            self._parameters[name] = _move(param, device, moved)

    def register_buffer(self: nn.Module, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        _REGISTER_BUFFER(self, name, tensor, persistent)
        if tensor is not None:
            self._buffers[name] = _move(tensor, device, moved)

    with (
        mock.patch.object(nn.Module, "register_parameter", register_parameter),
        mock.patch.object(nn.Module, "register_buffer", register_buffer) if include_buffers else nullcontext(),
    ):
        yield


def _move(tensor: Tensor, device: torch.device | str, moved: WeakTensorKeyDictionary) -> Tensor:
    """``tensor`` on ``device``, one and the same however often it is registered."""
    if is_lazy(tensor):
        return tensor
    if tensor not in moved:
        with torch.no_grad():
            there = tensor.to(device)
        if there is tensor:
            return tensor
        moved[tensor] = _in_the_manner_of(tensor, there)
    return moved[tensor]


def _in_the_manner_of(tensor: Tensor, values: Tensor) -> Tensor:
    """``values`` as a parameter if ``tensor`` is one, with its attributes."""
    if isinstance(tensor, nn.Parameter):
        values = nn.Parameter(values, requires_grad=tensor.requires_grad)
    values.__dict__.update(tensor.__dict__)
    return values


def init_parameters(module: nn.Module, stage_index: int = 0) -> nn.Module:
    """See the port."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"init_parameters takes a module, got {type(module).__name__}")
    if not isinstance(stage_index, int) or stage_index < 0:
        raise ValueError(f"stage_index must be 0 or more, got {stage_index!r}")
    owners = [one for one in _children_first(module) if any(tensor.is_meta for tensor in _own(one))]
    _refuse_without_values(module, owners)
    waiting = {tensor for one in owners for tensor in _own(one) if tensor.is_meta}
    with torch.no_grad(), _random_numbers_of(stage_index):
        for tensor in waiting:
            torch.utils.swap_tensors(tensor, _in_the_manner_of(tensor, torch.empty_like(tensor, device=_home(tensor))))
        for owner in owners:
            _draw(owner, waiting)
    return module


def _children_first(module: nn.Module) -> Iterator[nn.Module]:
    seen = set()

    def visit(one: nn.Module) -> Iterator[nn.Module]:
        if one not in seen:
            seen.add(one)
            for child in one.children():
                yield from visit(child)
            yield one

    return visit(module)


def _own(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers of the module itself, without its children's."""
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _refuse_without_values(module: nn.Module, owners: list[nn.Module]) -> None:
    names = {one: name for name, one in module.named_modules()}
    for owner in owners:
        if not callable(getattr(owner, "reset_parameters", None)):
            raise TypeError(
                f"{names[owner] or 'the module'} ({type(owner).__name__}) has deferred tensors but no "
                "reset_parameters() to give them values: write one, or load a state dict"
            )


def _home(tensor: Tensor) -> torch.device | str:
    if isinstance(tensor, DTensor):
        return tensor.device_mesh.device_type
    return torch.get_default_device()


@contextmanager
def _random_numbers_of(stage_index: int) -> Iterator[None]:
    if not stage_index:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(torch.initial_seed() + stage_index)
        yield


def _draw(owner: nn.Module, waiting: set[Tensor]) -> None:
    """Lets a module draw its values in whole, and keeps this rank's part of those that were still waiting."""
    parameters, buffers = dict(owner._parameters), dict(owner._buffers)
    owner._parameters.update({name: _whole(one) for name, one in parameters.items() if one is not None})
    owner._buffers.update({name: one.clone() for name, one in buffers.items() if one is not None})
    try:
        owner.reset_parameters()
        drawn: dict[str, Any] = {**owner._parameters, **owner._buffers}
    finally:
        owner._parameters.update(parameters)
        owner._buffers.update(buffers)
    for name, tensor in (parameters | buffers).items():
        if tensor in waiting:
            waiting.remove(tensor)
            _keep_part(tensor, drawn[name])


def _whole(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter to draw into: undivided, of the same dtype, its values undefined."""
    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    return nn.Parameter(empty, requires_grad=parameter.requires_grad)


def _keep_part(tensor: Tensor, whole: Tensor) -> None:
    if isinstance(tensor, DTensor):
        # Every rank has drawn the same, so nothing needs to be sent.
        part = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
        tensor.to_local().copy_(part.to_local())
    else:
        tensor.copy_(whole)
