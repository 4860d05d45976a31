"""Plans, and what they say of one module: names resolved, layouts as placements."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement

from hyper_parallel_tests.engines.torch_native.layout import Layout

Placements: TypeAlias = tuple[Placement, ...]
Layouts: TypeAlias = tuple[Placements | None, ...] | dict[str, Placements | None]
"""Of several tensors, by position or by name; None for one that is left alone."""


@dataclass
class ShardingPlan:
    """See the port."""

    plan: dict[str, Any] | None = None
    input_plan: dict[str, Any] | None = None
    output_plan: dict[str, Any] | None = None
    return_local_tensor: list[str] | None = None

    def __str__(self) -> str:
        lines = ["ShardingPlan"]
        for part in fields(self):
            value = getattr(self, part.name)
            entries = value.items() if isinstance(value, dict) else [(name, "") for name in value or ()]
            lines += [f"  {part.name}: {name or '(the model)'} {layout}".rstrip() for name, layout in entries]
        return "\n".join(lines)


@dataclass
class Resolved:
    """What a plan says of one module; all names are there."""

    parameters: dict[str, Placements] = field(default_factory=dict)
    inputs: dict[str, Layouts] = field(default_factory=dict)
    outputs: dict[str, Layouts] = field(default_factory=dict)
    local: list[str] = field(default_factory=list)


def resolve(model: nn.Module, device_mesh: DeviceMesh, plan: ShardingPlan) -> Resolved:
    """Looks everything up, and changes nothing.

    Raises:
        ValueError: as `shard_module`.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    parameters = _names(named.items())
    modules = _names(model.named_modules(remove_duplicate=False))
    found = Resolved()
    for pattern, value in (plan.plan or {}).items():
        for name in matching(pattern, parameters, "parameter"):
            _say(found.parameters, name, _of_parameter(name, named[name].ndim, value, device_mesh), pattern)
    for side, entries, into in (
        ("input", plan.input_plan, found.inputs),
        ("output", plan.output_plan, found.outputs),
    ):
        for key, value in (entries or {}).items():
            for name in matching(_module_of(key, side), modules, "module"):
                _say(into, name, _of_key(key, layouts_of, value, device_mesh), key)
    for pattern in plan.return_local_tensor or ():
        found.local += matching(pattern, modules, "module")
    return found


def matching(pattern: str, names: dict[str, str], what: str) -> list[str]:
    """First names of what `pattern` reaches, each once; a wildcard stays within its level."""
    levels = pattern.split(".")
    found = [first for name, first in names.items() if _fits(name.split("."), levels)]
    if not found:
        raise ValueError(f"the plan names {what} {pattern!r}, which is not there: {near(pattern, names)}")
    return list(dict.fromkeys(found))


def near(wanted: str, names: Iterable[str]) -> str:
    """For a message: the names that `wanted` may have meant."""
    known = [name for name in names if name]
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    return f"near matches are {', '.join(close)}" if close else f"expected one of {', '.join(known) or 'none'}"


def layouts_of(value: Any, device_mesh: DeviceMesh) -> Layouts:
    """Of a module's inputs or outputs, in any form that the port allows."""
    if isinstance(value, dict):
        return {name: one_layout(one, device_mesh, optional=True) for name, one in value.items()}
    if value is None or _is_one(value):
        return (one_layout(value, device_mesh, optional=True),)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(one_layout(one, device_mesh, optional=True) for one in value)
    raise ValueError(f"expected a layout, a sequence or a dict of them, got {value!r}")


def one_layout(value: Any, device_mesh: DeviceMesh, optional: bool = False) -> Placements | None:
    """Placements of one tensor."""
    if value is None and optional:
        return None
    if not _is_one(value):
        raise ValueError(f"expected a tuple of placements or of axis names for one tensor, got {value!r}")
    if not isinstance(value[0], Placement):
        return Layout(tuple(device_mesh.shape), tuple(device_mesh.mesh_dim_names or ()))(*value).placements
    if len(value) != device_mesh.ndim:
        raise ValueError(f"a mesh of {device_mesh.ndim} dimensions needs as many placements, got {value}")
    return tuple(value)


def _of_parameter(name: str, ndim: int, value: Any, device_mesh: DeviceMesh) -> Placements:
    """Placements of a parameter, which must have the dimensions that they divide."""
    placements = _of_key(name, one_layout, value, device_mesh)
    by_axes = not isinstance(value[0], Placement)
    if by_axes and len(value) != ndim:
        raise ValueError(f"{name!r} has {ndim} dimensions, which need as many axis names, got {value}")
    for one in placements:
        if one.is_shard() and not -ndim <= one.dim < ndim:
            raise ValueError(f"{name!r} has {ndim} dimensions, and cannot be divided as {value}")
    return placements


def _of_key(key: str, read: Callable[[Any, DeviceMesh], Any], value: Any, device_mesh: DeviceMesh) -> Any:
    try:
        return read(value, device_mesh)
    except ValueError as error:
        raise ValueError(f"the plan of {key!r}: {error}") from error


def _names(named: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Name -> first name of the same object."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(one), name) for name, one in named}


def _fits(name: list[str], levels: list[str]) -> bool:
    # The model itself has no name, which a wildcard would otherwise stand for.
    return len(name) == len(levels) and all(
        bool(one) == bool(level) and fnmatchcase(one, level) for one, level in zip(name, levels, strict=True)
    )


def _module_of(key: str, side: str) -> str:
    module, _, last = key.rpartition(".")
    if last != side:
        raise ValueError(f"a key of {side}_plan is {side!r} or ends with '.{side}', got {key!r}")
    return module


def _is_one(value: Any) -> bool:
    """Whether this is one tensor's layout; a tuple of tuples of names is one whose dimensions have several axes."""
    if not isinstance(value, tuple) or not value:
        return False
    return all(isinstance(one, Placement) for one in value) or all(map(_is_alias, value))


def _is_alias(value: Any) -> bool:
    inner = value if isinstance(value, tuple) else (value,)
    return bool(inner) and all(isinstance(one, str) for one in inner)


def _say(into: dict[str, Any], name: str, value: Any, key: str) -> None:
    if into.setdefault(name, value) != value:
        raise ValueError(f"{key!r} lays out {name or 'the model'!r} as {value}, another key as {into[name]}")
