"""Optimizers one after the other, with one state dict by the names of the parameters.

PyTorch's ``get_optimizer_state_dict`` makes the same flat state dict, but steps an optimizer that has no state yet, and
loads whole tensors by another option than divided ones. Here nothing is stepped, and a value may come either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hyper_parallel_tests.engines.torch_native.optimizer.layouts import laid_out_as, whole
from hyper_parallel_tests.engines.torch_native.optimizer.names import bare_names


class ChainedOptimizer:
    """See the port."""

    def __init__(self, model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self.optimizers_dict = dict(optimizers)
        names = bare_names(model)
        owners: dict[Tensor, str] = {}
        for owner, optimizer in self.optimizers_dict.items():
            for number, parameter in enumerate(_parameters(optimizer)):
                if parameter not in names:
                    raise ValueError(f"parameter {number} of {owner!r} is none of the model's: shard before optimizing")
                if parameter in owners:
                    raise ValueError(f"{names[parameter]} is stepped by both {owners[parameter]!r} and {owner!r}")
                owners[parameter] = owner
        self._names = names
        self.param_names_by_optimizer = {
            owner: [name for parameter, name in names.items() if owners.get(parameter) == owner]
            for owner in self.optimizers_dict
        }

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """See the port."""
        return [group for optimizer in self.optimizers_dict.values() for group in optimizer.param_groups]

    def step(self) -> None:
        """See the port."""
        for optimizer in self.optimizers_dict.values():
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See the port."""
        for optimizer in self.optimizers_dict.values():
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """See the port."""
        flat: dict[str, Any] = {}
        for optimizer in self.optimizers_dict.values():
            numbered = optimizer.state_dict()
            for group, names in zip(numbered["param_groups"], self._named(optimizer), strict=True):
                for number, name in zip(group["params"], names, strict=True):
                    state = numbered["state"].get(number, {})
                    flat |= {f"state.{name}.{key}": value for key, value in state.items()}
                    flat |= {f"param_groups.{name}.{key}": value for key, value in group.items() if key != "params"}
        return flat

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See the port."""
        reader = _Reader(state_dict)
        loads = [(one, reader.numbered(one, self._named(one))) for one in self.optimizers_dict.values()]
        reader.check()
        for optimizer, numbered in loads:
            optimizer.load_state_dict(numbered)

    def _named(self, optimizer: torch.optim.Optimizer) -> list[list[str]]:
        """The names of each group's parameters."""
        return [[self._names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]


class _Reader:
    """A flat state dict that is read by names, and what is wrong with it."""

    def __init__(self, flat: Mapping[str, Any]) -> None:
        self._flat, self._left = flat, set(flat)
        self._missing: list[str] = []
        self._wrong: list[str] = []

    def numbered(self, optimizer: torch.optim.Optimizer, names: list[list[str]]) -> dict[str, Any]:
        """What ``optimizer.load_state_dict`` takes."""
        state: dict[int, dict[str, Any]] = {}
        groups = []
        parameters = _parameters(optimizer)
        for group, own in zip(optimizer.param_groups, names, strict=True):
            numbers = range(len(state), len(state) + len(own))
            groups.append({"params": list(numbers)} | self._options(group, own))
            for number, name in zip(numbers, own, strict=True):
                state[number] = self._state(name, parameters[number])
            self._check_complete(own, [state[number] for number in numbers])
        return {"state": {number: one for number, one in state.items() if one}, "param_groups": groups}

    def check(self) -> None:
        """Raises an error for all that is wrong together."""
        if self._missing or self._left:
            missing, unknown = ", ".join(sorted(self._missing)), ", ".join(sorted(self._left))
            raise KeyError(f"the state dict lacks [{missing}] and has [{unknown}], which this optimizer does not know")
        if self._wrong:
            raise ValueError(f"the state dict does not fit: {'; '.join(self._wrong)}")

    def _options(self, group: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
        options = {}
        for option in (one for one in group if one != "params"):
            keys = [f"param_groups.{name}.{option}" for name in names]
            self._missing += [key for key in keys if key not in self._flat]
            self._left -= set(keys)
            values = [self._flat[key] for key in keys if key in self._flat]
            if any(value != values[0] for value in values):
                self._wrong.append(f"{option} is not one for {', '.join(names)}, which are one group")
            # A group without parameters is not in a state dict by names: it keeps its own.
            options[option] = values[0] if values else group[option]
        return options

    def _state(self, name: str, parameter: Tensor) -> dict[str, Any]:
        prefix = f"state.{name}."
        # A name may begin with another one, so what follows it must be a key and no further name.
        keys = [key for key in self._flat if key.startswith(prefix) and "." not in key.removeprefix(prefix)]
        self._left -= set(keys)
        return {key.removeprefix(prefix): self._value(key, parameter) for key in keys}

    def _value(self, key: str, parameter: Tensor) -> Any:
        value = self._flat[key]
        if not isinstance(value, Tensor):
            return value
        value = whole(value).clone()
        if value.ndim == 0:
            return value
        if value.shape != parameter.shape:
            self._wrong.append(f"{key} is {tuple(value.shape)}, its parameter {tuple(parameter.shape)}")
            return value
        return laid_out_as(parameter, value)

    def _check_complete(self, names: list[str], states: list[dict[str, Any]]) -> None:
        """Parameters of one group have the same state, or none."""
        wanted = set().union(*states)
        for name, state in zip(names, states, strict=True):
            if state:
                self._missing += [f"state.{name}.{key}" for key in wanted - set(state)]


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
