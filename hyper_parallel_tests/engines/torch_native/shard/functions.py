"""Functions of parts made functions of distributed tensors.

Mathematics. Let each rank r compute y_r = f(x_r). A gradient g of the results is handed to f on each rank such that the
sum over ranks of what f makes of it is the gradient of the inputs: of a divided result each rank gets its part, of a
partial one, y = sum y_r, each gets g, and of a replicated one, which stands on n ranks, each gets g / n. Then a divided
input has its part of the gradient, a replicated input has a term of it on each rank, and a partial input the whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.placement_types import Placement


def custom_shard(
    func: Callable[..., Any],
    device_mesh: DeviceMesh,
    out_placements: Sequence[Sequence[Placement] | None],
    in_placements: Sequence[Sequence[Placement] | None] | None = None,
    redistribute_inputs: bool = True,
) -> Callable[..., Any]:
    """See the port."""

    @functools.wraps(func)
    def sharded(*args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(one, DTensor) for one in args):
            return func(*args, **kwargs)
        if in_placements is None or len(in_placements) != len(args):
            raise ValueError(f"expected placements for {len(args)} arguments, got in_placements={in_placements}")
        for name, one in kwargs.items():
            if isinstance(one, DTensor):
                raise TypeError(f"argument {name!r} is a distributed tensor; in_placements needs it in its place")
        parts = [
            part_of(one, device_mesh, placements, place, redistribute_inputs)
            for place, (one, placements) in enumerate(zip(args, in_placements, strict=True))
        ]
        output = func(*parts, **kwargs)
        results = output if isinstance(output, tuple) else (output,)
        if len(results) != len(out_placements):
            raise ValueError(f"expected {len(out_placements)} results by out_placements, got {len(results)}")
        joined = tuple(
            join(one, device_mesh, placements, place)
            for place, (one, placements) in enumerate(zip(results, out_placements, strict=True))
        )
        return joined if isinstance(output, tuple) else joined[0]

    return sharded


def part_of(
    value: Any, device_mesh: DeviceMesh, placements: Sequence[Placement] | None, place: int, redistribute: bool
) -> Any:
    """This rank's part of an argument; the argument itself where it is no distributed tensor."""
    if isinstance(value, DTensor) != (placements is not None):
        raise TypeError(f"argument {place} is a {type(value).__name__}, its placements are {placements}")
    if placements is None:
        return value
    placements = fitting(placements, device_mesh, f"argument {place}")
    if not redistribute and value.placements != placements:
        raise ValueError(f"argument {place} lies as {value.placements}, expected {placements}")
    for size, placement in zip(device_mesh.shape, placements, strict=True):
        if placement.is_shard() and value.shape[placement.dim] % size:
            raise ValueError(f"{size} ranks do not divide argument {place} evenly: {tuple(value.shape)} by {placement}")
    # Also where nothing moves: going back, this sums the terms.
    moved = value.redistribute(device_mesh, placements)
    return moved.to_local(grad_placements=[gradient_of_part(one) for one in placements])


def gradient_of_part(placement: Placement) -> Placement:
    """How the gradients that ranks have of their parts of an input make up the whole."""
    if placement.is_replicate():
        return Partial()
    return Replicate() if placement.is_partial() else placement


def join(value: Any, device_mesh: DeviceMesh, placements: Sequence[Placement] | None, place: int) -> Any:
    """A distributed tensor of a result's parts; the result itself where it is no tensor."""
    if isinstance(value, Tensor) != (placements is not None):
        raise TypeError(f"result {place} is a {type(value).__name__}, its placements are {placements}")
    if placements is None:
        return value
    placements = fitting(placements, device_mesh, f"result {place}")
    gradients = [gradient_of_part(one) for one in placements]
    return DTensor.from_local(value, device_mesh, placements, grad_placements=gradients)


def fitting(placements: Any, device_mesh: DeviceMesh, what: str) -> tuple[Placement, ...]:
    """Placements as a tuple, one for each mesh dimension.

    Raises:
        ValueError: they are not.
    """
    if isinstance(placements, Placement) or len(placements) != device_mesh.ndim:
        raise ValueError(f"{what} needs a tuple of {device_mesh.ndim} placements by the mesh, got {placements}")
    return tuple(placements)


class DFunction:
    """See the port."""

    op_name: ClassVar[str]
    _function: ClassVar[type[torch.autograd.Function]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        missing = [name for name in ("op_name", "forward", "backward", "rule") if not hasattr(cls, name)]
        if missing:
            raise TypeError(f"{cls.__name__} needs {', '.join(missing)}")
        # The graph shows a function by the name of its class.
        steps = {"forward": staticmethod(cls.forward), "backward": staticmethod(cls.backward)}
        cls._function = type(cls.op_name, (torch.autograd.Function,), steps)

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """The operator on distributed tensors, or on plain ones."""
        tensors = [one for one in args if isinstance(one, DTensor)]
        if not tensors:
            return cls._function.apply(*args)
        mesh = tensors[0].device_mesh
        rows = [cls._row(args, axis) for axis in range(mesh.ndim)]
        outputs, inputs = (_by_tensor([row[side] for row in rows]) for side in (0, 1))
        try:
            return custom_shard(cls._function.apply, mesh, outputs, inputs)(*args)
        except (TypeError, ValueError) as error:
            raise type(error)(f"operator {cls.op_name}: {error}") from error

    @classmethod
    def _row(cls, args: Sequence[Any], axis: int) -> tuple[list[Any], list[Any]]:
        """What the rule says along one mesh dimension: the row that is there, or else the first."""
        here = [one.placements[axis] if isinstance(one, DTensor) else None for one in args]
        rows = cls.rule(*args)
        if not rows:
            raise ValueError(f"operator {cls.op_name}: its rule has no row for {here} along mesh dimension {axis}")
        return next((row for row in rows if list(row[1]) == here), rows[0])


def _by_tensor(rows: Sequence[Sequence[Placement | None]]) -> list[tuple[Placement, ...] | None]:
    """From placements along each mesh dimension, those of each tensor."""
    return [None if None in one else tuple(one) for one in zip(*rows, strict=True)]
