"""Plans of all ranks of a world in one process, and what a judge makes of them without the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyper_parallel_tests.harness import assert_equal

NAMES = ("a", "b", "c")


class Placed(NamedTuple):
    """A tensor on a mesh.

    Attributes:
        whole: the full tensor, the same on every rank.
        dims: for each mesh dimension the tensor dimension that it divides, None for replicas. None altogether: a plain
            tensor that each rank has.
    """

    whole: Tensor
    dims: Sequence[int | None] | None


class Written(NamedTuple):
    """What became of a planned save.

    Attributes:
        had: for each rank its part of each tensor.
        writes: for each rank what it writes.
        metadata: of the checkpoint.
    """

    had: list[dict[str, Tensor]]
    writes: list[Sequence[Any]]
    metadata: Any


def numbered(*size: int) -> Tensor:
    """A tensor whose elements are all different, and none is zero."""
    return torch.arange(1, math.prod(size) + 1, dtype=torch.float32).reshape(size)


def on_each_rank(
    engine: Any, mesh_shape: tuple[int, ...], placed: Mapping[str, Placed], visit: Callable[[int, dict[str, Any]], None]
) -> None:
    """Calls `visit(rank, state dict)` in the simulated world of each rank of a mesh."""
    ranks = math.prod(mesh_shape)
    for rank in range(ranks):
        with engine.simulated_world(rank, ranks):
            mesh = engine.init_device_mesh("cpu", mesh_shape, mesh_dim_names=NAMES[: len(mesh_shape)])
            visit(rank, {key: placed_on(engine, mesh, one) for key, one in placed.items()})


def placed_on(engine: Any, mesh: Any, placed: Placed) -> Any:
    """The calling rank's view of a tensor on a mesh."""
    if placed.dims is None:
        return placed.whole.clone()
    placements = [engine.Replicate() if dim is None else engine.Shard(dim) for dim in placed.dims]
    return engine.distribute_tensor(placed.whole, mesh, placements)


def local(value: Any) -> Tensor:
    """What a rank has of a tensor."""
    return value.to_local() if hasattr(value, "to_local") else value


def plan_save(
    engine: Any,
    mesh_shape: tuple[int, ...],
    placed: Mapping[str, Placed],
    change: Callable[[int, dict[str, Any]], None] = lambda rank, state: None,
) -> Written:
    """Plans a save of tensors on a mesh.

    Args:
        change: called with each rank and its state dict before the planner sees it.
    """
    planners, plans, had = [], [], []

    def visit(rank: int, state: dict[str, Any]) -> None:
        change(rank, state)
        planner = engine.StandardSavePlanner()
        planner.configure_planner(state, is_coordinator=rank == 0, rank=rank)
        plans.append(planner.build_local_plan())
        planners.append(planner)
        had.append({key: local(value) for key, value in state.items() if isinstance(local(value), Tensor)})

    on_each_rank(engine, mesh_shape, placed, visit)
    divided, metadata = planners[0].build_global_plan(plans)
    final = [planner.finalize_plan(plan) for planner, plan in zip(planners, divided, strict=True)]
    return Written(had, [engine.planned_writes(plan) for plan in final], metadata)


def saved_parts(written: Written, whole: Mapping[str, Tensor]) -> dict[tuple[str, tuple[int, ...]], Tensor]:
    """The parts that a save leaves, by key and offsets.

    Raises:
        AssertionError: an element is written by no rank, twice, or by a rank that has another one; or the metadata
            tell of other parts.
    """
    parts: dict[tuple[str, tuple[int, ...]], Tensor] = {}
    times = {key: torch.zeros_like(tensor) for key, tensor in whole.items()}
    for rank, writes in enumerate(written.writes):
        for key, offsets, sizes in writes:
            if offsets is None:
                continue
            part = written.had[rank][key]
            assert tuple(part.shape) == sizes, f"rank {rank} has {tuple(part.shape)} of {key} and writes {sizes}"
            where = block(offsets, sizes)
            assert_equal(part, whole[key][where], what=f"{key} at {offsets} as rank {rank} writes it")
            times[key][where] += 1
            if part.numel():
                parts[key, offsets] = part
    assert_equal(times, {key: torch.ones_like(tensor) for key, tensor in whole.items()}, what="times written")
    _assert_told(written.metadata, parts, whole)
    return parts


def _assert_told(metadata: Any, parts: Iterable[tuple[str, tuple[int, ...]]], whole: Mapping[str, Tensor]) -> None:
    for key, tensor in whole.items():
        told = metadata.state_dict_metadata[key]
        assert (tuple(told.size), str(told.properties.dtype)) == (tuple(tensor.shape), str(tensor.dtype)), key
        chunks = [tuple(chunk.offsets) for chunk in told.chunks if math.prod(chunk.sizes)]
        assert sorted(chunks) == sorted(offsets for name, offsets in parts if name == key), key


def assert_loads(
    engine: Any,
    mesh_shape: tuple[int, ...],
    placed: Mapping[str, Placed],
    metadata: Any,
    parts: Mapping[tuple[str, tuple[int, ...]], Tensor],
) -> None:
    """Plans a load into tensors on a mesh and carries it out.

    Raises:
        AssertionError: an element is read by a rank that does not want it, not, twice, or from the wrong place.
    """
    planners, plans, wanted = [], [], []

    def visit(rank: int, state: dict[str, Any]) -> None:
        planner = engine.StandardLoadPlanner()
        planner.configure_planner(state, metadata, is_coordinator=rank == 0, rank=rank)
        plans.append(planner.build_local_plan())
        planners.append(planner)
        wanted.append({key: local(value) for key, value in state.items()})

    on_each_rank(engine, mesh_shape, placed, visit)
    together = planners[0].build_global_plan(plans)
    for rank, (planner, plan) in enumerate(zip(planners, together, strict=True)):
        _assert_reads(engine.planned_reads(planner.finalize_plan(plan)), parts, wanted[rank], rank)


def _assert_reads(
    reads: Sequence[Any], parts: Mapping[tuple[str, tuple[int, ...]], Tensor], wanted: Mapping[str, Tensor], rank: int
) -> None:
    got = {key: torch.zeros_like(tensor) for key, tensor in wanted.items()}
    times = {key: torch.zeros_like(tensor) for key, tensor in wanted.items()}
    for key, saved_at, saved_offsets, offsets, sizes in reads:
        if not math.prod(sizes):
            continue
        assert (key, saved_at) in parts, f"rank {rank} reads {key} at {saved_at}, where no part was saved"
        got[key][block(offsets, sizes)] = parts[key, saved_at][block(saved_offsets, sizes)]
        times[key][block(offsets, sizes)] += 1
    assert_equal(got, wanted, what=f"what rank {rank} reads")
    assert_equal(times, {key: torch.ones_like(one) for key, one in wanted.items()}, what=f"times rank {rank} reads it")


def block(offsets: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    """Indices of a block in a tensor."""
    return tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes, strict=True))


def assert_journey(
    engine: Any,
    saving: tuple[int, ...],
    loading: tuple[int, ...],
    tensors: Sequence[tuple[tuple[int, ...], Sequence[int | None] | None, Sequence[int | None] | None]],
) -> None:
    """Plans a save on one mesh and a load on another, for tensors of a size that are divided so and so at either end.

    Raises:
        AssertionError: as `saved_parts` and `assert_loads`.
    """
    whole = {f"t{index}": numbered(*size) for index, (size, _, _) in enumerate(tensors)}
    before = {key: Placed(whole[key], dims) for key, (_, dims, _) in zip(whole, tensors, strict=True)}
    after = {key: Placed(whole[key], dims) for key, (_, _, dims) in zip(whole, tensors, strict=True)}
    written = plan_save(engine, saving, before)
    assert_loads(engine, loading, after, written.metadata, saved_parts(written, whole))
