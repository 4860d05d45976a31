"""Collectives on part of the world."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.harness import assert_equal, contract


def halves(engine, world, made_by: str):
    """Divides the world into even and odd ranks: this rank's group, the group's ranks, 0 for even or 1."""
    parts = [list(range(start, world.size, 2)) for start in (0, 1)]
    which = world.rank % 2
    if made_by == "split_group":
        return engine.split_group(split_ranks=parts), parts[which], which
    return [engine.new_group(part) for part in parts][which], parts[which], which


def own_value(world) -> torch.Tensor:
    return torch.full((16,), 2.0**world.rank, device=world.device)


@contract("COL-1-04")
def test_non_members_are_untouched(engine, world):
    """A collective on a subgroup is no call of the others: their tensors stay, and nobody waits for them."""
    members = list(range(world.size - 1))
    group = engine.new_group(members)
    tensor = own_value(world)
    if world.rank in members:
        engine.all_reduce(tensor, group=group)
        assert_equal(tensor, torch.full_like(tensor, 2.0 ** len(members) - 1), what="tensor")
    else:
        assert group is None
        assert_equal(tensor, own_value(world), what="tensor")


@contract("COL-1-04")
@pytest.mark.parametrize("made_by", ["new_group", "split_group"])
def test_disjoint_subgroups_reduce_their_own_members(engine, world, made_by):
    """Each of two disjoint groups gives the sum over its own members."""
    group, members, _ = halves(engine, world, made_by)
    assert engine.get_process_group_ranks(group) == members
    tensor = own_value(world)
    engine.all_reduce(tensor, group=group)
    assert_equal(tensor, torch.full_like(tensor, sum(2.0**rank for rank in members)), what="tensor")


@contract("COL-1-04")
@pytest.mark.parametrize("first", [0, 1], ids=["even-first", "odd-first"])
def test_disjoint_subgroups_do_not_wait_for_each_other(engine, world, first):
    """One group ends its collective while the other has not begun, whichever it is."""
    group, members, which = halves(engine, world, "new_group")
    partner = world.rank + 1 - 2 * which
    token = torch.zeros(1, device=world.device)
    if which != first:
        engine.recv(token, src=partner)
    tensor = own_value(world)
    engine.all_reduce(tensor, group=group)
    assert_equal(tensor, torch.full_like(tensor, sum(2.0**rank for rank in members)), what="tensor")
    if which == first:
        engine.send(token, dst=partner)


@contract("COL-1-04")
@pytest.mark.parametrize("made_by", ["new_group", "split_group"])
def test_both_subgroups_are_under_way_at_once(engine, world, made_by):
    """Collectives of a subgroup and of the world, started together and waited for crosswise, keep apart."""
    group, members, _ = halves(engine, world, made_by)
    local, everywhere = own_value(world), own_value(world)
    inner = engine.all_reduce(local, group=group, async_op=True)
    outer = engine.all_reduce(everywhere, async_op=True)
    outer.wait()
    inner.wait()
    assert_equal(everywhere, torch.full_like(everywhere, 2.0**world.size - 1), what="sum over the world")
    assert_equal(local, torch.full_like(local, sum(2.0**rank for rank in members)), what="sum over the group")


@contract("COL-1-04")
def test_group_rank_follows_the_members(engine, world):
    """In a group each member's rank is its place among the members, and a source is still a global rank."""
    group, members, _ = halves(engine, world, "split_group")
    assert engine.get_rank(group) == members.index(world.rank)
    assert engine.get_world_size(group) == len(members)
    tensor = own_value(world)
    engine.broadcast(tensor, src=members[-1], group=group)
    assert_equal(tensor, torch.full_like(tensor, 2.0 ** members[-1]), what="tensor")


@contract("COL-1-04")
def test_ranks_with_different_histories_share_a_group(engine, world):
    """A split forms a group of ranks that are members of different numbers of groups already."""
    engine.new_group([0])
    group = engine.split_group(split_ranks=[list(range(world.size))])
    tensor = own_value(world)
    engine.all_reduce(tensor, group=group)
    assert_equal(tensor, torch.full_like(tensor, 2.0**world.size - 1), what="tensor")


@contract("COL-1-04")
def test_split_of_a_split(engine, world):
    """A part can be split again by its own members, whose group ranks count from 0."""
    half, members, which = halves(engine, world, "split_group")
    single = engine.split_group(half, [[len(members) - 1]])
    assert (single is not None) == (world.rank == members[-1])
    if single is not None:
        assert engine.get_process_group_ranks(single) == [members[-1]]


@contract("COL-1-04")
@pytest.mark.parametrize(
    ("parts", "culprit"), [([[0, 1], [1]], 1), ([[0], [64]], 64)], ids=["in-two-parts", "not-in-the-parent"]
)
def test_impossible_split(engine, world, parts, culprit):
    """A split with overlapping parts or a rank from outside is refused, and the message names the rank."""
    with pytest.raises(ValueError, match=rf"\b{culprit}\b"):
        engine.split_group(split_ranks=parts)
