"""Groups of part of the world: each dimension of a mesh, and the parts of a split."""

from __future__ import annotations

from typing import Any, NamedTuple

from hyper_parallel_tests.harness import World

NAMES = ("rows", "columns", "split")


class Part(NamedTuple):
    """A group that this rank is in.

    Attributes:
        group: to be given to collectives.
        ranks: its members' global ranks, in the group's order.
        place: this rank's place among them.
    """

    group: Any
    ranks: list[int]
    place: int


def part_of_the_world(engine: Any, world: World, name: str) -> Part:
    """This rank's group along a dimension of the mesh, of 2 x 2 on four ranks, or its half of even or odd ranks."""
    columns = world.size // 2
    row, column = divmod(world.rank, columns)
    if name == "split":
        halves = [list(range(start, world.size, 2)) for start in (0, 1)]
        ranks, group = halves[world.rank % 2], engine.split_group(split_ranks=halves)
    else:
        ranks = [column, columns + column] if name == "rows" else [row * columns + one for one in range(columns)]
        group = world.mesh(rows=2, columns=columns).get_group(name)
    return Part(group, ranks, ranks.index(world.rank))
