"""Activation checkpointing: HyperParallel's region, wrapper and selective contexts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from hyper_parallel_tests.engines.hyper_parallel.library import find, offered, platform, refuse
from hyper_parallel_tests.engines.port import Unsupported

__all__ = [
    "ActivationCheckpointConfig",
    "CheckpointPolicy",
    "apply_ac",
    "checkpoint",
    "checkpoint_wrapper",
    "create_selective_checkpoint_contexts",
    "set_checkpoint_early_stop",
]

_PACKAGES = ("core.activation_checkpoint", "core.activation_memory")
_REASON = "this version of the library has no activation checkpoint"
_USERS = Unsupported("the library leaves it to its user which layers are regions")


def _places(name: str) -> list[str]:
    return [f"hyper_parallel.{package}:{name}" for package in _PACKAGES]


_checkpoint = find(*_places("checkpoint"))
_checkpoint_wrapper = find(*_places("checkpoint_wrapper"))


def checkpoint(
    function: Callable[..., Any], *args: Any, policy_fn: Any = None, use_reentrant: bool = False, **kwargs: Any
) -> Any:
    """See the port. The library itself tells PyTorch which kind of region it is."""
    if use_reentrant:
        refuse("checkpoint", "the library has no reentrant regions")
    return _checkpoint(function, *args, policy_fn=policy_fn, **kwargs)


def checkpoint_wrapper(
    module: nn.Module, *, policy_fn: Any = None, use_reentrant: bool = False, **options: Any
) -> nn.Module:
    """See the port."""
    if use_reentrant:
        refuse("checkpoint_wrapper", "the library has no reentrant regions")
    return _checkpoint_wrapper(module, policy_fn=policy_fn, **options)


if _checkpoint is None:
    checkpoint = Unsupported(_REASON)
if _checkpoint_wrapper is None:
    checkpoint_wrapper = Unsupported(_REASON)

CheckpointPolicy = offered(*_places("CheckpointPolicy"), reason=_REASON)
create_selective_checkpoint_contexts = getattr(
    platform(),
    "create_selective_checkpoint_contexts",
    offered(*_places("create_selective_checkpoint_contexts"), reason=_REASON),
)
set_checkpoint_early_stop = Unsupported("the library leaves it to PyTorch")
ActivationCheckpointConfig = _USERS
apply_ac = _USERS
