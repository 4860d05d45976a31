"""Sizes, values and placement of the inputs of one case of the operator matrix."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.domains.dtensor.operators.table import Case, Input

__all__ = ["distributed", "drawn", "local_shape", "sizes_of"]

_IGNORED = -100


def sizes_of(case: Case, ranks: int) -> dict[str, int]:
    """The size of each letter. Those that are not sharded are even, and all even ones are different.

    uneven: the last rank's shard is one shorter. empty: the last rank has none (on 4 ranks: 2, 2, 1, 0).
    """
    sizes = {letter: (2 + number) * ranks for number, letter in enumerate(case.operator.letters)}
    for letter in case.operator.sharded_letters(case.placings):
        if case.sizes == "uneven":
            sizes[letter] -= 1
        elif case.sizes == "empty":
            sizes[letter] = 2 * ranks - 3
    return sizes


def drawn(case: Case, ranks: int) -> list[Tensor]:
    """The full inputs, the same on every rank: fp64, int64 or bool."""
    generator = torch.Generator().manual_seed(zlib.crc32(str(case).encode()))
    sizes = sizes_of(case, ranks)
    return [_fill(one, sizes, generator) for one in case.operator.inputs]


def _fill(one: Input, sizes: dict[str, int], generator: torch.Generator) -> Tensor:
    shape = tuple(sizes[letter] for letter in one.dims)
    if one.values in ("index", "index_or_ignored"):
        found = torch.randint(sizes[one.of], shape, generator=generator)
        if one.values == "index_or_ignored":
            # Every third and never the first, so that shards hold different numbers of them.
            found.view(-1)[2::3] = _IGNORED
        return found
    if one.values == "integer":
        return torch.randint(-9, 10, shape, generator=generator)
    if one.values == "mask":
        return torch.rand(shape, generator=generator) < 0.6
    if one.values == "positive":
        return torch.rand(shape, generator=generator, dtype=torch.float64) * 1.5 + 0.5
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    if one.values == "probability":
        return torch.sigmoid(values)
    return torch.log_softmax(values, -1) if one.values == "log_probability" else values


def distributed(engine: Any, mesh: Any, full: Tensor, placements: tuple[str, ...], seed: int) -> Any:
    """`full` as a DTensor, placed as said, one placement a mesh dimension.

    Args:
        engine, mesh: of the case; every rank of the mesh calls this.
        full: the whole tensor, the same on every rank.
        placements: as in `Operator`, e.g. `("S0", "Pmax")`.
        seed: of the parts that make up a partial tensor.
    """
    kinds = [_placement(engine, placement) for placement in placements]
    if not any(placement.startswith("P") for placement in placements):
        return engine.distribute_tensor(full, mesh, kinds)
    part = _part(mesh, full, placements, seed)
    sharded = [dim for dim, placement in enumerate(placements) if placement.startswith("S")]
    for dim in sharded:
        cut = int(placements[dim][1:])
        part = part.tensor_split(_cuts(part.shape[cut], mesh.size(dim)), cut)[mesh.get_local_rank(dim)].contiguous()
    # The shape of a sharded tensor does not follow from one rank's part.
    return engine.from_local(part, mesh, kinds, shape=tuple(full.shape) if sharded else None)


def _placement(engine: Any, text: str) -> Any:
    if text == "R":
        return engine.Replicate()
    return engine.Partial(text[1:] or "sum") if text.startswith("P") else engine.Shard(int(text[1:]))


def _part(mesh: Any, full: Tensor, placements: tuple[str, ...], seed: int) -> Tensor:
    """What this rank holds of a partial tensor: no rank's part is the tensor itself, or zero."""
    partial = [dim for dim, placement in enumerate(placements) if placement.startswith("P")]
    (reduction,) = {placements[dim][1:] or "sum" for dim in partial}
    count, place = 1, 0
    for dim in partial:
        count, place = count * mesh.size(dim), place * mesh.size(dim) + mesh.get_local_rank(dim)
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randn((count, *full.shape), generator=generator, dtype=full.dtype)
    if reduction in ("sum", "avg"):
        whole = full * count if reduction == "avg" else full
        parts[-1] = whole - parts[:-1].sum(0)
    else:
        # Each element has its extreme on a rank of its own; all others are behind.
        behind = parts.abs() + 0.1
        owner = torch.randint(count, full.shape, generator=generator)
        behind.scatter_(0, owner.unsqueeze(0), 0.0)
        parts = full - behind if reduction == "max" else full + behind
    return parts[place].clone()


def _cuts(size: int, ranks: int) -> list[int]:
    piece = -(-size // ranks)
    return [min(piece * number, size) for number in range(1, ranks)]


def local_shape(tensor: Any) -> tuple[int, ...] | None:
    """The shape that this rank's part of a DTensor must have, None where the placements are of another kind."""
    mesh, shape = tensor.device_mesh, list(tensor.shape)
    for dim, placement in enumerate(tensor.placements):
        if hasattr(placement, "split_factor"):
            return None
        if hasattr(placement, "dim"):
            size, rank = shape[placement.dim], mesh.get_local_rank(dim)
            edges = [0, *_cuts(size, mesh.size(dim)), size]
            shape[placement.dim] = edges[rank + 1] - edges[rank]
    return tuple(shape)
