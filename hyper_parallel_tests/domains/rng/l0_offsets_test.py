"""Where in a stream of random numbers each rank draws its part."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from hyper_parallel_tests.harness import contract

MESH = (2, 3)
RANKS = math.prod(MESH)
# Those that divide evenly, unevenly, and with nothing left for some ranks.
SHAPES = list(itertools.product(range(1, 10), repeat=2))


def rounded_up(count: int) -> int:
    """To a multiple of the four numbers that the generator makes at once."""
    return -(-count // 4) * 4


def offsets(engine: Any, shapes: list[tuple[int, ...]], placements: tuple[Any, ...]) -> list[list[tuple[int, int]]]:
    """For each shape what each rank of the mesh is told, in the order of ranks."""
    by_rank = []
    for rank in range(RANKS):
        with engine.simulated_world(rank, RANKS):
            mesh = engine.init_device_mesh("cpu", MESH, mesh_dim_names=("dp", "tp"))
            by_rank.append([engine.rng_offsets(shape, mesh, placements) for shape in shapes])
    return list(zip(*by_rank, strict=True))


def part_numbers(placements: tuple[Any, ...]) -> list[int]:
    """Which part, in row-major order over the tensor's dimensions, each rank of the mesh has."""
    numbers = []
    for coordinates in itertools.product(*map(range, MESH)):
        place = [0, 0]
        count = [1, 1]
        for size, index, placement in zip(MESH, coordinates, placements, strict=True):
            if placement.is_shard():
                place[placement.dim] = place[placement.dim] * size + index
                count[placement.dim] *= size
        numbers.append(place[0] * count[1] + place[1])
    return numbers


def first_part_size(shape: tuple[int, int], placements: tuple[Any, ...]) -> int:
    """Elements of the first rank's part, which is a largest one."""
    size = list(shape)
    for ranks, placement in zip(MESH, placements, strict=True):
        if placement.is_shard():
            size[placement.dim] = -(-size[placement.dim] // ranks)
    return math.prod(size)


def layouts(engine: Any) -> dict[str, tuple[Any, Any]]:
    """Placements over the two dimensions of the mesh."""
    replicate, rows, columns = engine.Replicate(), engine.Shard(0), engine.Shard(1)
    return {
        "replicated": (replicate, replicate),
        "rows_over_dp": (rows, replicate),
        "rows_over_tp": (replicate, rows),
        "columns_over_tp": (replicate, columns),
        "both": (rows, columns),
        "both_swapped": (columns, rows),
        "rows_twice": (rows, rows),
    }


each_layout = pytest.mark.parametrize(
    "layout",
    ["replicated", "rows_over_dp", "rows_over_tp", "columns_over_tp", "both", "both_swapped", "rows_twice"],
)


@contract("RN-0-01")
@each_layout
def test_part_begins_at_its_number_times_the_first_parts_size(engine, layout):
    """Each rank begins behind the parts before its own, in multiples of four; so replicas begin at one place."""
    placements = layouts(engine)[layout]
    for shape, found in zip(SHAPES, offsets(engine, SHAPES, placements), strict=True):
        size = first_part_size(shape, placements)
        assert [start for start, _ in found] == [rounded_up(one * size) for one in part_numbers(placements)], shape


@contract("RN-0-01")
@each_layout
def test_all_ranks_move_on_by_the_full_tensor(engine, layout):
    """However it is divided, a tensor takes as many numbers on every rank as it has elements, in multiples of four."""
    for shape, found in zip(SHAPES, offsets(engine, SHAPES, layouts(engine)[layout]), strict=True):
        assert {end for _, end in found} == {rounded_up(math.prod(shape))}, shape


@contract("RN-0-01")
@pytest.mark.parametrize(
    "shape", [(4, 12), (4, 6), (2, 6), (2, 3)], ids=["eight_each", "four_each", "two_each", "one_each"]
)
def test_no_two_parts_draw_the_same_numbers(engine, shape):
    """Ranks with different parts begin at different places, and before the place of what is drawn next."""
    (found,) = offsets(engine, [shape], layouts(engine)["both"])
    starts = [start for start, _ in found]
    assert len(set(starts)) == RANKS, f"two ranks begin at one place: {starts}"
    assert max(starts) < found[0][1], f"a rank begins where the next tensor begins: {found}"
