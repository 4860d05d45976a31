"""One redistribution, held to the full tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.domains.dtensor.reference import part
from hyper_parallel_tests.domains.dtensor.setting import numbers, on, placed
from hyper_parallel_tests.harness import assert_equal

# A size of which all ranks hold parts alike, on any mesh of up to four ranks.
EVEN = (8, 4)

_REDUCTIONS = {
    "P": lambda terms, dim: terms.sum(dim),
    "Pavg": lambda terms, dim: terms.mean(dim),
    "Pmax": lambda terms, dim: terms.amax(dim),
}


def source_of(engine: Any, world: Any, mesh: Any, size: tuple[int, ...], kinds: str) -> tuple[Any, Tensor]:
    """A distributed tensor that needs a gradient, and what it is in full.

    Ranks hold different terms along `P` dimensions; the numbers are such that sums and means of them are exact.
    """
    grid, names = tuple(mesh.mesh.shape), kinds.split("-")
    terms = [number for number, kind in zip(grid, names, strict=True) if kind.startswith("P")]
    if not terms:
        return on(engine, mesh, numbers(*size), kinds).requires_grad_(), numbers(*size)
    every = numbers(*terms, *size)
    place = [at for at, kind in zip(mesh.get_coordinate(), names, strict=True) if kind.startswith("P")]
    placements = placed(engine, kinds)
    local = part(every[tuple(place)], grid, mesh.get_coordinate(), placements).contiguous()
    full = every
    for dim in reversed(range(len(terms))):
        full = _REDUCTIONS[next(kind for kind in names if kind.startswith("P"))](full, dim)
    tensor = engine.from_local(local, mesh, placements, shape=None if size == EVEN else size)
    return tensor.requires_grad_(), full


def check_redistribution(engine: Any, world: Any, mesh: Any, size: tuple[int, ...], source: str, target: str) -> None:
    """Redistributes from one set of placements to another; holds parts, the full tensor and the gradient to plain ones.

    Args:
        source, target: short names of the placements, joined by "-".
    """
    what = f"{source} to {target} of {size}"
    tensor, full = source_of(engine, world, mesh, size, source)
    found = engine.redistribute(tensor, mesh, placed(engine, target))
    assert list(found.placements) == placed(engine, target), what
    wanted = part(full, tuple(mesh.mesh.shape), mesh.get_coordinate(), placed(engine, target))
    assert_equal(found.to_local().detach(), wanted, what=f"part, {what}")
    assert_equal(found.full_tensor().detach(), full, what=f"full tensor, {what}")
    gradient = numbers(*size, seed=1) + torch.arange(float(size[0]))[:, None]
    engine.backward(found, gradient)
    assert_equal(engine.full_gradient(tensor), gradient, what=f"gradient, {what}")
