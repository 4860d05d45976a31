"""Optimizer state by the names of parameters, so that it survives parameters that are made anew or in another order.

PyTorch's own takes a step with gradients of zero where the optimizer has not stepped yet, so that it cannot be asked in
the middle of a window, and counts that step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["optimizer_state", "optimizer_targets", "parameter_names", "set_optimizer_state"]

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")


def parameter_names(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by the names that they have without the wrappers of other capabilities; tied ones once."""
    return {_bare(name): parameter for name, parameter in model.named_parameters()}


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """`state.<parameter>.<key>` for what there is, `param_groups.<parameter>.<key>` for what its group has."""
    found: dict[str, Any] = {}
    for name, parameter, group in _members(model, optimizer):
        found |= {f"state.{name}.{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
        found |= {f"param_groups.{name}.{key}": value for key, value in group.items() if key != "params"}
    return found


def optimizer_targets(model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Where saved state of the model's parameters is to be read into.

    Args:
        saved: metadata by key, as of a checkpoint of `optimizer_state`; keys of parameters that the model has not
            belong to other ranks' stages.

    Raises:
        ValueError: there is state of a parameter that the model has and the optimizer has not.
    """
    members = {name: parameter for name, parameter, _ in _members(model, optimizer)}
    targets = {key: value for key, value in optimizer_state(model, optimizer).items() if key.startswith("param_groups")}
    for key, one in saved.items():
        kind, _, rest = key.partition(".")
        name, _, what = rest.rpartition(".")
        if kind != "state" or name not in parameter_names(model):
            continue
        if name not in members:
            raise ValueError(
                f"the checkpoint has optimizer state of {name}, which this optimizer does not update; "
                "give it the parameters that the saved run had"
            )
        targets[key] = empty_like_saved(one, members[name] if what != "step" else None)
    return targets


def set_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Puts state that was read into targets in the place of what the optimizer has.

    Raises:
        ValueError: parameters of one group have unlike settings; names two of them.
    """
    by_name = _by_parameter("state.", state, (name for name, _, _ in _members(model, optimizer)))
    settings = _by_parameter("param_groups.", state, (name for name, _, _ in _members(model, optimizer)))
    first: dict[int, str] = {}
    for name, _, group in _members(model, optimizer):
        other = first.setdefault(id(group), name)
        if settings[name] != settings[other]:
            raise ValueError(f"{other} and {name} are in one group, and have unlike settings in the checkpoint")
    optimizer.state.clear()
    for name, parameter, group in _members(model, optimizer):
        if by_name[name]:
            optimizer.state[parameter] = by_name[name]
        group |= settings[name]


def empty_like_saved(saved: Any, parameter: Tensor | None) -> Any:
    """What one saved value is read into: laid out as the parameter where it has its shape; None for what is no tensor.

    Args:
        saved: metadata of one key.
        parameter: whose value it is; None where the value is not one for each element.
    """
    if not hasattr(saved, "size"):
        return None
    dtype = saved.properties.dtype
    if parameter is not None and tuple(saved.size) == tuple(parameter.shape):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    return torch.zeros(tuple(saved.size), dtype=dtype)


def _members(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[tuple[str, nn.Parameter, dict[str, Any]]]:
    """Name, parameter and group of all that the optimizer updates, in its order."""
    names = {parameter: name for name, parameter in parameter_names(model).items()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in names:
                raise ValueError("the optimizer updates a parameter that the model has not; make it anew")
            yield names[parameter], parameter, group


def _by_parameter(prefix: str, state: Mapping[str, Any], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in state.items():
        name, _, what = key.removeprefix(prefix).rpartition(".")
        if key.startswith(prefix) and name in found:
            found[name][what] = value
    return found


def _bare(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
