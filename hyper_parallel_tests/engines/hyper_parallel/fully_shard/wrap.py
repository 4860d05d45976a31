"""Wrapping a module, and refusing what the library at hand does not have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from hyper_parallel_tests.engines.hyper_parallel.fully_shard.policies import MixedPrecisionPolicy, OffloadPolicy
from hyper_parallel_tests.engines.hyper_parallel.library import find, offered, refuse
from hyper_parallel_tests.engines.port import Unsupported, members
from hyper_parallel_tests.engines.port.fully_shard import HSDPModuleMembers

_MISSING = "this version of the library has no fully_shard"

HSDPModule = offered(
    "hyper_parallel:HSDPModule",
    "hyper_parallel.core.fully_shard.api:HSDPModule",
    "hyper_parallel.core.fully_shard.api:HSDPCell",
    reason=_MISSING,
)
_fully_shard = find("hyper_parallel:fully_shard", "hyper_parallel.core.fully_shard.api:fully_shard")
_OPTIONS = {} if _fully_shard is None else inspect.signature(_fully_shard).parameters

_FORMER_NAMES = {
    "set_modules_to_forward_prefetch": ["set_forward_prefetch_modules", "set_forward_prefetch_cells"],
    "set_modules_to_backward_prefetch": ["set_backward_prefetch_modules", "set_backward_prefetch_cells"],
}


def fully_shard(
    module: nn.Module | list[nn.Module],
    *,
    mesh: Any = None,
    reshard_after_forward: bool | int = True,
    shard_placement_fn: Callable[[nn.Parameter], Any] | None = None,
    mp_policy: Any = None,
    offload_policy: Any = None,
    ignored_params: set[nn.Parameter] | None = None,
    replicate_params: set[nn.Parameter] | None = None,
    comm_fusion: bool = False,
) -> Any:
    """See the port. What is left out is left to the library, but that some versions need policies, if idle ones."""
    given = {
        "shard_placement_fn": shard_placement_fn,
        "mp_policy": mp_policy or _idle("mp_policy", MixedPrecisionPolicy),
        "offload_policy": offload_policy or _idle("offload_policy", OffloadPolicy),
        "ignored_params": ignored_params,
        "replicate_params": replicate_params,
        "comm_fusion": comm_fusion,
    }
    options = {name: value for name, value in given.items() if value}
    if isinstance(module, list) and not _takes_lists():
        refuse("fully_shard", "this version of the library takes one module at a time")
    wrapped = _guarded("fully_shard", _fully_shard)(
        module, mesh=mesh, reshard_after_forward=reshard_after_forward, **options
    )
    for one in wrapped if isinstance(wrapped, list) else [wrapped]:
        _guard(one)
    return wrapped


def _idle(option: str, policy: Callable[[], Any]) -> Any:
    """A policy that does nothing, where the library has none for its default; otherwise None."""
    return policy() if option in _OPTIONS and _OPTIONS[option].default is None else None


def _takes_lists() -> bool:
    first = next(iter(_OPTIONS.values()))
    return "list" in str(first.annotation).lower()


def _guarded(member: str, offered: Callable[..., Any] | None) -> Callable[..., Any]:
    """What the library offers as ``member``, but a clear refusal of what it does not have or says to lack."""
    if offered is None:
        return lambda *args, **options: refuse(member, "this version of the library does not have it")
    signature = inspect.signature(offered)

    @functools.wraps(offered)
    def call(*args: Any, **options: Any) -> Any:
        if unknown := options.keys() - signature.parameters.keys():
            refuse(member, f"this version of the library has it without {', '.join(sorted(unknown))}")
        try:
            return offered(*args, **options)
        except NotImplementedError as error:
            refuse(member, f"the library says: {error}")

    return call


def _guard(module: nn.Module) -> None:
    cls = type(module)
    if cls not in _guards:
        methods = {name: _guarded(name, _method(cls, name)) for name in members(HSDPModuleMembers)}
        _guards[cls] = type(cls.__name__, (cls,), methods)
    module.__class__ = _guards[cls]


def _method(cls: type, name: str) -> Callable[..., Any] | None:
    known = [name, *_FORMER_NAMES.get(name, [])]
    return next((getattr(cls, one) for one in known if hasattr(cls, one)), None)


_guards: dict[type, type] = {}

if _fully_shard is None:
    fully_shard = Unsupported(_MISSING)
