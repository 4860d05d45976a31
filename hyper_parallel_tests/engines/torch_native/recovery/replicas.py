"""Copies of gradients on several ranks, compared by one sum each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.engines.torch_native.monitor import divided_dimensions

__all__ = ["DivergedGradient", "diverged_gradients"]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class DivergedGradient:
    """See the port."""

    name: str
    ranks: tuple[int, ...]
    certain: bool


@torch.no_grad()
def diverged_gradients(model: nn.Module, *, mesh: DeviceMesh) -> list[DivergedGradient]:
    """See the port."""
    parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
    if not parameters:
        return []
    everywhere = gathered(torch.stack([checksum(_gradient(one)) for one in parameters.values()]), mesh)
    found = []
    for place, (name, parameter) in enumerate(parameters.items()):
        for ranks in _holders(name, divided_dimensions(parameter), mesh):
            suspects = _suspects({rank: int(everywhere[at][place]) for rank, at in ranks.items()})
            if suspects:
                found.append(DivergedGradient(name, suspects, len(suspects) < len(ranks)))
    return found


def checksum(values: Tensor) -> Tensor:
    """A sum of all bits, an int64 of no dimension: no single bit leaves it the same, nor do two elements of up to four
    bytes that swap; that of no elements is another than that of zeros.

    Elements are taken as integers, times an odd number of their place, and their number is added, modulo 2**64.
    """
    flat = values.contiguous().flatten()
    words = flat.view(_INTEGERS[flat.element_size()]).to(torch.int64)
    return (words * (2 * torch.arange(len(words), device=words.device) + 1)).sum() + len(words)


def gathered(sums: Tensor, mesh: DeviceMesh) -> Tensor:
    """The sums of all ranks of a mesh, on the CPU: its dimensions before those of ``sums``."""
    # The innermost first, so that the outermost stands in front.
    for group in reversed(mesh.get_all_groups()):
        parts = [torch.empty_like(sums) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, sums.contiguous(), group=group)
        sums = torch.stack(parts)
    return sums.cpu()


def _holders(name: str, divided: set[str | None], mesh: DeviceMesh) -> list[dict[int, tuple[int, ...]]]:
    """Ranks that hold the same part of a parameter, with their coordinates: one entry for each part."""
    names = mesh.mesh_dim_names or (None,) * mesh.ndim
    if not divided <= set(names):
        raise ValueError(f"{name} is divided over {', '.join(map(str, divided))}, and the mesh has {', '.join(names)}")
    parts: dict[tuple[int, ...], dict[int, tuple[int, ...]]] = {}
    for at in product(*(range(mesh.size(place)) for place in range(mesh.ndim))):
        part = tuple(one for one, name in zip(at, names, strict=True) if name in divided)
        parts.setdefault(part, {})[int(mesh.mesh[at])] = at
    return list(parts.values())


def _suspects(sums: Mapping[int, int]) -> tuple[int, ...]:
    """Ranks that most of the others differ from; all of them where no sum is that of more than half."""
    values = list(sums.values())
    if len(set(values)) <= 1:
        return ()
    most = max(set(values), key=values.count)
    if 2 * values.count(most) <= len(values):
        return tuple(sorted(sums))
    return tuple(sorted(rank for rank, value in sums.items() if value != most))


def _gradient(parameter: Tensor) -> Tensor:
    """This rank's part of it; without one, of no elements."""
    gradient = parameter.grad
    if gradient is None:
        return torch.empty(0, device=parameter.device)
    if isinstance(gradient, DTensor):
        if gradient.placements != parameter.placements:
            # Terms that are still to be added up are no copies.
            gradient = gradient.redistribute(placements=parameter.placements)
        return gradient.to_local()
    return gradient
