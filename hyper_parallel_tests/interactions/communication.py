"""What a step communicates: in which order on each rank, and over the shards as without divided layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import torch.distributed as dist
from torch import nn

from hyper_parallel_tests.harness import World, trace

__all__ = ["assert_as_undivided", "assert_same_order"]


def assert_same_order(world: World, sent: trace.Collectives) -> None:
    """Hold all ranks to have started the same collectives in the same order, each in its own groups; all call this.

    Ranks that agree inside each of their groups may still wait for each other in a circle: one in a group of the one
    dimension of the mesh, one in a group of the other.
    """
    # Groups along the same dimensions of a mesh differ in their first rank.
    own = [(tuple(rank - one.ranks[0] for rank in one.ranks), one.op, one.dtype, one.reduce) for one in sent]
    everyone: list[Any] = [None] * world.size
    dist.all_gather_object(everyone, own)
    first = everyone[0]
    for rank, order in enumerate(everyone):
        place = next((place for place, two in enumerate(zip_longest(order, first)) if two[0] != two[1]), None)
        assert place is None, f"collective {place} of rank {rank} is {order[place:][:1]}, of rank 0 {first[place:][:1]}"


def assert_as_undivided(
    backward: Callable[[nn.Module], object], divided: nn.Module, undivided: nn.Module, *shards: Any
) -> None:
    """Hold a second step to start the collectives over the shards that it starts where no layer is divided.

    Args:
        backward: forward and backward of a model.
        divided, undivided: models that are sharded alike.
        shards: meshes of one dimension; collectives of other groups do not count.
    """
    found = [_of_second(partial(backward, model), shards) for model in (divided, undivided)]
    assert found[0] == found[1]
    assert all(found[1]), f"over some of {shards} nothing is sent: {found[1]}"


def _of_second(backward: Callable[[], object], meshes: Sequence[Any]) -> list[list[str]]:
    """Names of the collectives over this rank's group of each mesh."""
    backward()
    with trace.collectives() as sent:
        backward()
    return [sent.ops(over=tuple(dist.get_process_group_ranks(one.get_group()))) for one in meshes]
