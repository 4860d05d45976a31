"""Precision monitor of torch_native: a reference on DTensor placements.

PyTorch's ``get_total_norm`` knows parameters of one mesh, reduces them one by one, and has no pipeline stages. Here
each rank adds up what it is the first to hold, and one number is reduced.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

__all__ = ["TrainingStateMonitor", "format_record"]


@dataclass(frozen=True)
class Record:
    """See the port."""

    step: int
    local_loss: float | None
    local_norm: float
    local_norms: Mapping[str, float]
    global_norm: float


class TrainingStateMonitor:
    """See the port."""

    def __init__(
        self, model: nn.Module, *, mesh: DeviceMesh | None = None, stage_dim: str | None = None, interval: int = 1
    ) -> None:
        names = mesh.mesh_dim_names or () if mesh is not None else ()
        if stage_dim is not None and stage_dim not in names:
            raise ValueError(
                f"stage_dim {stage_dim!r} is no dimension of the mesh: it has {', '.join(names) or 'none'}"
            )
        if interval < 1:
            raise ValueError(f"interval is {interval}: record every step with 1, or each so many with more")
        self.records: list[Record] = []
        self._model, self._mesh, self._stage_dim, self._interval = model, mesh, stage_dim, interval
        self._step = -1

    @torch.no_grad()
    def record(self, loss: Tensor | None = None) -> Record | None:
        """See the port."""
        self._step += 1
        if self._step % self._interval:
            return None
        squares = {name: square_of(one) for name, one in self._parameters()}
        own = math.fsum(squares[name] for name, one in self._parameters() if self._is_first_holder(one))
        found = Record(
            self._step,
            None if loss is None else float(_local(loss)),
            math.sqrt(math.fsum(squares.values())),
            {name: math.sqrt(one) for name, one in squares.items()},
            math.sqrt(self._sum_over_ranks(own)),
        )
        self.records.append(found)
        return found

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, one) for name, one in self._model.named_parameters() if one.requires_grad)

    def _is_first_holder(self, parameter: Tensor) -> bool:
        """Whether of all ranks that hold the same part of a parameter this one has the lowest coordinates."""
        divided = {self._stage_dim} | divided_dimensions(parameter)
        return all(rank == 0 for name, rank in self._coordinates().items() if name not in divided)

    def _coordinates(self) -> dict[str, int]:
        if self._mesh is None:
            return self._of_all_ranks()
        return dict(zip(self._mesh.mesh_dim_names, self._mesh.get_coordinate(), strict=True))

    def _of_all_ranks(self) -> dict[str, int]:
        """Coordinates where no mesh was given: those of the parameters' own meshes, which then hold all ranks."""
        meshes = {one.device_mesh for _, one in self._parameters() if isinstance(one, DTensor)}
        widest = max(meshes, key=lambda mesh: mesh.ndim, default=None)
        if widest is None:
            return {"all ranks": dist.get_rank()}
        if widest.size() != dist.get_world_size():
            raise ValueError(
                f"parameters lie on a mesh of {widest.size()} ranks, and {dist.get_world_size()} train: "
                "give the monitor the mesh of all of them"
            )
        return dict(zip(widest.mesh_dim_names, widest.get_coordinate(), strict=True))

    def _sum_over_ranks(self, value: float) -> float:
        device = next((_local(one).device for _, one in self._parameters()), None)
        total = torch.tensor(value, dtype=torch.float64, device=device)
        for group in [None] if self._mesh is None else self._mesh.get_all_groups():
            dist.all_reduce(total, group=group)
        return total.item()


def square_of(parameter: Tensor) -> float:
    """Sum of squares of this rank's part of a gradient, 0 without one."""
    main_grad = getattr(parameter, "main_grad", None)
    gradient = parameter.grad if main_grad is None else main_grad
    if gradient is None:
        return 0.0
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        # Terms that are still to be added up, or copies of what the parameter has in shards.
        gradient = gradient.redistribute(placements=parameter.placements)
    norm = torch.linalg.vector_norm(_local(gradient), dtype=torch.float64)
    return norm.item() ** 2


def divided_dimensions(parameter: Tensor) -> set[str | None]:
    """Names of the mesh dimensions along which ranks hold different parts of a parameter."""
    if not isinstance(parameter, DTensor):
        return set()
    names = parameter.device_mesh.mesh_dim_names or ()
    # A strided shard, as of FSDP over tensor parallelism, does not call itself a shard.
    return {name for name, one in zip(names, parameter.placements, strict=True) if not one.is_replicate()}


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def format_record(record: Any, names: Sequence[str] = ()) -> str:
    """See the port."""
    loss = "none" if record.local_loss is None else f"{record.local_loss:.6g}"
    norms = f"global norm {record.global_norm:.6g}, local norm {record.local_norm:.6g}"
    parts = [f"step {record.step}: {norms}, local loss {loss}"]
    for name in names:
        if name not in record.local_norms:
            near = difflib.get_close_matches(name, record.local_norms, n=3)
            raise KeyError(f"no parameter {name!r}; near matches: {', '.join(near) or 'none'}")
        parts.append(f"{name} {record.local_norms[name]:.6g}")
    return ", ".join(parts)
