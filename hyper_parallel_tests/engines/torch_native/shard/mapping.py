"""Which layout belongs to which argument of a call, and to which part of its result."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.engines.torch_native.shard.plan import Layouts, Placements, near

_IN_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Inputs:
    """Lays the arguments of a function out; each stays in the form, positional or by name, in which it came.

    Raises:
        ValueError: the function has no such arguments.
    """

    def __init__(self, function: Callable[..., Any], layouts: Layouts, device_mesh: DeviceMesh) -> None:
        parameters = inspect.signature(function).parameters.values()
        self._in_place = [one.name for one in parameters if one.kind in _IN_PLACE]
        self._rest = next((one.name for one in parameters if one.kind is one.VAR_POSITIONAL), None)
        self._layouts, self._mesh = layouts, device_mesh
        known = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
        if isinstance(layouts, tuple):
            if self._rest is None and len(layouts) > len(self._in_place):
                raise ValueError(f"{len(layouts)} layouts for {len(self._in_place)} arguments: {self._in_place}")
        elif len(known) == len(parameters):
            for name in layouts:
                if name not in known:
                    raise ValueError(f"the plan names argument {name!r}, which is not there: {near(name, known)}")

    def lay_out(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of one call, as a forward pre-hook returns them."""
        moved = tuple(moved_to(one, self._at(place), self._mesh) for place, one in enumerate(args))
        return moved, {name: moved_to(one, self._named(name), self._mesh) for name, one in kwargs.items()}

    def _at(self, place: int) -> Placements | None:
        if isinstance(self._layouts, tuple):
            return self._layouts[place] if place < len(self._layouts) else None
        return self._layouts.get(self._in_place[place] if place < len(self._in_place) else self._rest)

    def _named(self, name: str) -> Placements | None:
        if isinstance(self._layouts, dict):
            return self._layouts.get(name)
        return self._at(self._in_place.index(name)) if name in self._in_place else None


def lay_out_output(output: Any, layouts: Layouts, device_mesh: DeviceMesh) -> Any:
    """A result with its parts laid out, in the structure that it has.

    Raises:
        ValueError: it has other parts than the layouts.
    """
    parts = parts_of(output)
    if parts is None:
        if isinstance(layouts, dict) or len(layouts) != 1:
            raise ValueError(f"the plan lays out {_described(layouts)}, the output is one {type(output).__name__}")
        return moved_to(output, layouts[0], device_mesh)
    if isinstance(layouts, tuple):
        if len(layouts) != len(parts):
            raise ValueError(f"the plan lays out {_described(layouts)}, the output has {len(parts)}: {list(parts)}")
        layouts = dict(zip(parts, layouts, strict=True))
    for name in layouts:
        if name not in parts:
            raise ValueError(f"the plan names output {name!r}, which is not there: {near(name, map(str, parts))}")
    moved = {name: moved_to(one, layouts.get(name), device_mesh) for name, one in parts.items()}
    return with_parts(output, moved)


def local_parts(output: Any) -> Any:
    """A result with this rank's part for each distributed tensor, at any depth, in the structure that it has."""
    if isinstance(output, DTensor):
        return output.to_local()
    parts = parts_of(output)
    return output if parts is None else with_parts(output, {name: local_parts(one) for name, one in parts.items()})


def moved_to(value: Any, placements: Placements | None, device_mesh: DeviceMesh) -> Any:
    """A distributed tensor in these placements, anything else as it is."""
    if placements is None or not isinstance(value, DTensor):
        return value
    return value.redistribute(device_mesh, placements)


def parts_of(value: Any) -> dict[Any, Any] | None:
    """Parts of a structure by name, or by place in a tuple or list; None for what is no structure."""
    if isinstance(value, dict):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, (tuple, list)) and not isinstance(value, Tensor):
        return dict(enumerate(value))
    return None


def with_parts(value: Any, parts: dict[Any, Any]) -> Any:
    """A structure of the same type with other parts."""
    if hasattr(value, "_make"):
        return value._make(parts.values())
    if isinstance(value, (tuple, list)):
        return type(value)(parts.values())
    changed = copy.copy(value)
    if isinstance(value, dict):
        # Not by update, which a dict with attributes may refuse.
        for name, one in parts.items():
            changed[name] = one
    else:
        for name, one in parts.items():
            # A frozen dataclass is made anew too.
            object.__setattr__(changed, name, one)
    return changed


def _described(layouts: Layouts) -> str:
    return f"{list(layouts)} by name" if isinstance(layouts, dict) else f"{len(layouts)} by position"
