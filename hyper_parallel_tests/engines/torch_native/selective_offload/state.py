"""An optimizer whose state is on the host but for the parameters that are being stepped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.engines.torch_native.selective_offload.moving import Away, local_of


@dataclass(frozen=True)
class SwapOptimizerConfig:
    """See the port."""

    swap_times: int = 16
    state_keys: Sequence[str] | None = None
    min_numel: int = 1024

    def __post_init__(self) -> None:
        if self.swap_times < 1 or self.min_numel < 0:
            raise ValueError(
                f"swap_times={self.swap_times}, min_numel={self.min_numel}: expected at least one batch, and no "
                "negative size"
            )
        if isinstance(self.state_keys, str):
            raise TypeError(f"state_keys is {self.state_keys!r}: expected a list of keys, or None for all")


def swap_optimizer(
    optimizer: torch.optim.Optimizer, config: SwapOptimizerConfig | None = None
) -> torch.optim.Optimizer:
    """See the port."""
    return SwapOptimizer(optimizer, config or SwapOptimizerConfig())


class SwapOptimizer(torch.optim.Optimizer):
    """See ``swap_optimizer`` of the port."""

    def __init__(self, optimizer: torch.optim.Optimizer, config: SwapOptimizerConfig) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._inner, self._config = optimizer, config
        self._away: dict[Tensor, dict[str, Away]] = {}
        self._share()
        self._leave(self._parameters())
        self._wait(self._parameters())

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """See the port."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        batches = self.batches()
        try:
            for number, batch in enumerate(batches):
                self._back(batch)
                if number:
                    self._wait(batches[number - 1])
                if number + 1 < len(batches):
                    self._come(batches[number + 1])
                self._step(batch)
                self._leave(batch)
        finally:
            self._leave(self._parameters())
            for away in self._of(self._parameters()):
                away.stay()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """See the port."""
        with self._all_here():
            found = self._inner.state_dict()
            # What leaves again is taken out of the optimizer's own dicts.
            return found | {"state": {number: dict(state) for number, state in found["state"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See the port."""
        with self._all_here():
            self._inner.load_state_dict(state_dict)
            self._share()

    def batches(self) -> list[list[Tensor]]:
        """The parameters that are stepped, in their order, in batches of about equal bytes."""
        # By the whole tensors, so that all ranks have the same batches: a step may be collective.
        stepped = [one for one in self._parameters() if one.grad is not None]
        sizes = [one.numel() * one.element_size() for one in stepped]
        total, before = sum(sizes), 0
        batches: dict[int, list[Tensor]] = {}
        for one, size in zip(stepped, sizes, strict=True):
            middle = before + size / 2
            batches.setdefault(int(middle * self._config.swap_times / max(total, 1)), []).append(one)
            before += size
        return list(batches.values())

    def _step(self, batch: list[Tensor]) -> None:
        chosen, whole = set(batch), [group["params"] for group in self.param_groups]
        try:
            for group in self.param_groups:
                group["params"] = [one for one in group["params"] if one in chosen]
            self._inner.step()
        finally:
            for group, parameters in zip(self.param_groups, whole, strict=True):
                group["params"] = parameters

    def _parameters(self) -> list[Tensor]:
        return [one for group in self.param_groups for one in group["params"]]

    def _leave(self, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            state = self.state.get(parameter, {})
            for key in [key for key, value in state.items() if self._swapped(key, value)]:
                self._away.setdefault(parameter, {})[key] = Away(state.pop(key))

    def _swapped(self, key: str, value: Any) -> bool:
        if not isinstance(value, Tensor) or not value.ndim:
            return False
        keys = self._config.state_keys
        return (keys is None or key in keys) and local_of(value).numel() >= self._config.min_numel

    def _wait(self, parameters: list[Tensor]) -> None:
        for away in self._of(parameters):
            away.wait()

    def _come(self, parameters: list[Tensor]) -> None:
        for away in self._of(parameters):
            away.come()

    def _back(self, parameters: list[Tensor]) -> None:
        self._come(parameters)
        for parameter in parameters:
            for key, away in self._away.pop(parameter, {}).items():
                self.state[parameter][key] = away.back()

    def _of(self, parameters: list[Tensor]) -> list[Away]:
        return [away for one in parameters for away in self._away.get(one, {}).values()]

    @contextmanager
    def _all_here(self) -> Iterator[None]:
        self._back(self._parameters())
        try:
            yield
        finally:
            self._leave(self._parameters())
            self._wait(self._parameters())

    def _share(self) -> None:
        """Takes what the optimizer makes anew when it is loaded."""
        self.state, self.param_groups = self._inner.state, self._inner.param_groups
