"""Activation swap: HyperParallel's wrapper, policy and manager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.engines.hyper_parallel.library import find, offered, refuse
from hyper_parallel_tests.engines.port import Unsupported

__all__ = [
    "ActivationPolicy",
    "SwapManager",
    "base_check_fn",
    "generate_swap_policy",
    "plan_swap_groups",
    "plan_swap_steps",
    "set_swap_fusion",
    "swap_wrapper",
    "watch_swap_copies",
]

_REASON = "this version of the library has no activation swap"
_PACKAGES = (
    "platform.torch.activation_checkpoint",
    "platform.torch.activation_checkpoint.activation_swap",
    "core.activation_checkpoint",
    "core.activation_memory",
)


def _places(name: str) -> list[str]:
    return [f"hyper_parallel.{package}:{name}" for package in _PACKAGES]


_check = find(*_places("base_check_fn"))


def base_check_fn(tensor: Tensor, *, min_bytes: int = 1, dtypes: Any = None) -> bool:
    """See the port."""
    if min_bytes != 1 or dtypes is not None:
        refuse("base_check_fn", "the library leaves tensors out by neither size nor dtype")
    return _check(tensor)


if _check is None:
    base_check_fn = Unsupported(_REASON)

ActivationPolicy = offered(*_places("ActivationPolicy"), reason=_REASON)
SwapManager = offered(*_places("SwapManager"), reason=_REASON)
swap_wrapper = offered(*_places("swap_wrapper"), reason=_REASON)
watch_swap_copies = Unsupported("the library tells nobody of its copies")
set_swap_fusion = Unsupported("this version of the library does not fuse copies")
_USERS = Unsupported("the library leaves it to its user what is swapped in which groups")
generate_swap_policy = _USERS
plan_swap_groups = _USERS
plan_swap_steps = _USERS


class _Moment:
    """A stream or an event of a device that does one thing after the other."""

    def record(self, _: Any) -> None:
        """It is reached at once."""

    def wait(self, _: Any) -> None:
        """It was reached before."""


class _WithoutStreams:
    """The library's layer over the framework on a host without an accelerator, which has no streams to give.

    Without it no group can be moved at all. The library leaves CPU tensors where they are, so no value can change.
    """

    def __init__(self, original: Any) -> None:
        self._original = original
        self.new_stream = self.new_event = self.get_current_stream = _Moment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def get_stream_context(self) -> Callable[[Any], AbstractContextManager[None]]:
        """The context of a stream."""
        return nullcontext


if not isinstance(SwapManager, Unsupported) and not torch.accelerator.is_available():
    _manager = sys.modules[SwapManager.__module__]
    if hasattr(_manager, "platform"):
        _manager.platform = _WithoutStreams(_manager.platform)
