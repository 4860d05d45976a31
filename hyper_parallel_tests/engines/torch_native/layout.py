"""Layouts of torch_native: a plain reference, since PyTorch has placements only.

Mathematics. Let the device matrix have the sizes D[0..n-1], outermost first. Axis i has the id n-1-i, so that ids count
from the innermost. A tensor map gives each tensor dimension t the ids that divide it, outermost division first. The
placement of axis i is Shard(t) if its id is in the map of t. Placements divide from left to right; an axis i that in
the map comes after axes j > i therefore divides after mesh dimensions to its right, and is a StridedShard whose split
factor is the product of those D[j].

Back: insert the axes of t from right to left. Axis i goes behind the shortest prefix of what is there whose sizes
multiply to its split factor (1 for a Shard). Axes of size 1 divide nothing, so their place does not matter.

Source: MindSpore's `Layout(device_matrix, alias_name)`, which HyperParallel's `Layout` follows; split factors as in
PyTorch's `_StridedShard`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement
from torch.distributed.tensor.placement_types import _StridedShard as StridedShard

_WHOLE = "None"


@dataclass(frozen=True)
class _Layout:
    """See the port's ``LayoutMembers``.

    Attributes:
        axes: for each tensor dimension the axes that divide it, by their place in the device matrix, outermost division
            first; None for a layout of no tensor.
    """

    mesh_shape: tuple[int, ...]
    alias_name: tuple[str, ...]
    rank_list: tuple[int, ...]
    partial: tuple[str | None, ...]
    axes: tuple[tuple[int, ...], ...] | None = None

    def __call__(self, *alias_tensor_map: str | tuple[str, ...]) -> _Layout:
        named = [one if isinstance(one, tuple) else (one,) for one in alias_tensor_map]
        used = [name for names in named for name in names if name != _WHOLE]
        for name in used:
            if name not in self.alias_name:
                raise ValueError(f"no axis {name!r}: expected {_WHOLE!r} or one of {', '.join(self.alias_name)}")
            if used.count(name) > 1:
                raise ValueError(f"axis {name!r} divides more than once in {alias_tensor_map}")
        axes = tuple(tuple(self.alias_name.index(name) for name in names if name != _WHOLE) for names in named)
        return _Layout(self.mesh_shape, self.alias_name, self.rank_list, (None,) * len(self.mesh_shape), axes)

    @property
    def tensor_map(self) -> tuple[int | tuple[int, ...], ...] | None:
        last = len(self.mesh_shape) - 1
        return None if self.axes is None else tuple(_joined([last - i for i in one], -1) for one in self.axes)

    @property
    def alias_tensor_map(self) -> tuple[str | tuple[str, ...], ...] | None:
        names = self.alias_name
        return None if self.axes is None else tuple(_joined([names[i] for i in one], _WHOLE) for one in self.axes)

    @property
    def placements(self) -> tuple[Placement, ...] | None:
        if self.axes is None:
            return None
        found = [Replicate() if op is None else Partial(op) for op in self.partial]
        for dim, order in enumerate(self.axes):
            for position, axis in enumerate(order):
                factor = math.prod(self.mesh_shape[other] for other in order[:position] if other > axis)
                found[axis] = Shard(dim) if factor == 1 else StridedShard(dim, split_factor=factor)
        return tuple(found)

    def is_partial(self) -> bool:
        return any(op is not None for op in self.partial)

    def repeat_num(self) -> int:
        if self.rank_list[-1] != dist.get_world_size() - 1:
            return -1
        return math.prod(self.mesh_shape) // math.prod(self._splits())

    def get_global_shape(self, slice_shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(size * split for size, split in zip(slice_shape, self._splits(), strict=True))

    def to_dict(self) -> dict[str, Any]:
        self._splits()
        return {
            "mesh_shape": self.mesh_shape,
            "tensor_map": self.tensor_map,
            "interleaved_parallel": "interleaved_parallel" in self.alias_name,
            "alias_name": self.alias_name,
            "rank_list": self.rank_list,
        }

    def _splits(self) -> list[int]:
        """Into how many parts each tensor dimension is divided."""
        if self.axes is None:
            raise ValueError(f"this layout of axes {self.alias_name} is of no tensor yet: call it with a name for each")
        return [math.prod(self.mesh_shape[axis] for axis in order) for order in self.axes]


def Layout(  # noqa: N802 - the port's name
    mesh_shape: tuple[int, ...], alias_name: tuple[str, ...], rank_list: Sequence[int] | None = None
) -> _Layout:
    """See the port."""
    size = math.prod(mesh_shape)
    ranks = tuple(range(size) if rank_list is None else rank_list)
    if len(alias_name) != len(mesh_shape):
        raise ValueError(f"device matrix {mesh_shape} needs {len(mesh_shape)} names, got {alias_name}")
    if len(set(alias_name)) != len(alias_name) or not all(alias_name) or _WHOLE in alias_name:
        raise ValueError(f"the names of axes must differ, and none may be empty or {_WHOLE!r}, got {alias_name}")
    if len(ranks) != size:
        raise ValueError(f"device matrix {mesh_shape} needs {size} ranks, got {len(ranks)}")
    return _Layout(tuple(mesh_shape), tuple(alias_name), ranks, (None,) * len(mesh_shape))


def layout_from_placements(device_mesh: DeviceMesh, placements: Sequence[Placement], ndim: int) -> _Layout:
    """See the port."""
    if device_mesh.mesh_dim_names is None:
        raise ValueError(f"a layout names its axes, but {device_mesh} has no names")
    if len(placements) != device_mesh.ndim:
        raise ValueError(f"{device_mesh} needs {device_mesh.ndim} placements, got {len(placements)}: {placements}")
    shape = tuple(device_mesh.shape)
    orders: list[list[int]] = [[] for _ in range(ndim)]
    for axis, placement in reversed(list(enumerate(placements))):
        if isinstance(placement, Shard | StridedShard):
            if placement.dim not in range(-ndim, ndim):
                raise ValueError(f"{placement} divides dimension {placement.dim} of a tensor that has {ndim}")
            order = orders[placement.dim]
            order.insert(_position([shape[other] for other in order], placement), axis)
    partial = tuple(one.reduce_op if isinstance(one, Partial) else None for one in placements)
    ranks = tuple(device_mesh.mesh.flatten().tolist())
    return _Layout(shape, tuple(device_mesh.mesh_dim_names), ranks, partial, tuple(map(tuple, orders)))


def _position(sizes: list[int], placement: Shard | StridedShard) -> int:
    """How many of the divisions that are there come before this one."""
    factor = placement.split_factor if isinstance(placement, StridedShard) else 1
    products = list(itertools.accumulate(sizes, initial=1, func=lambda product, size: product * size))
    if factor not in products:
        raise ValueError(f"split factor {factor} of {placement} fits no division to its right: {products}")
    return products.index(factor)


def _joined(values: list[Any], none: Any) -> Any:
    """As a tensor map has it: nothing for no axis, the axis itself, or a tuple of several."""
    return none if not values else values[0] if len(values) == 1 else tuple(values)
