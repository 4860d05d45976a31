"""Handles of asynchronous collectives."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.harness import contract

ELEMENTS = 4096


def start(engine, world, name: str, value: float, group=None):
    """Starts a collective in which rank r has ``value * (r + 1)``: its handle, and a check of its output."""
    ranks = torch.arange(1, world.size + 1, dtype=torch.float32, device=world.device) * value
    mine = ranks[world.rank].repeat(ELEMENTS)
    if name == "all_reduce":
        handle = engine.all_reduce(mine, async_op=True, group=group)
        return handle, lambda: torch.equal(mine, ranks.sum().repeat(ELEMENTS))
    if name == "all_gather":
        parts = [torch.zeros_like(mine) for _ in range(world.size)]
        handle = engine.all_gather(parts, mine, async_op=True, group=group)
        return handle, lambda: torch.equal(torch.stack(parts), ranks[:, None].expand(-1, ELEMENTS))
    output = torch.zeros(ELEMENTS * world.size, device=world.device)
    handle = engine.all_to_all_single(output, mine.repeat(world.size), async_op=True, group=group)
    return handle, lambda: torch.equal(output.view(world.size, -1), ranks[:, None].expand(-1, ELEMENTS))


@contract("COL-1-02")
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "all_to_all_single"])
def test_result_is_complete_after_wait(engine, world, name):
    """After wait() the output holds the whole result, and the handle reports completion."""
    handle, is_right = start(engine, world, name, value=3.0)
    handle.wait()
    assert is_right()
    assert handle.is_completed()


@contract("COL-1-02")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first-first", "last-first"])
@pytest.mark.parametrize("names", [("all_reduce", "all_reduce"), ("all_reduce", "all_to_all_single")], ids="-".join)
def test_two_outstanding_handles(engine, world, names, order):
    """Two collectives under way end in any order of waiting, each with its own result."""
    started = [start(engine, world, name, value=5.0 + index) for index, name in enumerate(names)]
    for index in order:
        handle, is_right = started[index]
        handle.wait()
        assert is_right()
        assert handle.is_completed()


@contract("COL-1-02")
def test_handle_is_open_while_a_rank_is_missing(engine, world):
    """As long as one rank has not come, no handle reports completion."""
    group = engine.new_group(list(range(world.size)))
    last = world.size - 1
    token = torch.zeros(1, device=world.device)
    if world.rank == last:
        # The others have looked at their handles before this rank comes.
        for peer in range(last):
            engine.recv(token, src=peer)
    handle, is_right = start(engine, world, "all_reduce", value=7.0, group=group)
    if world.rank != last:
        assert not handle.is_completed()
        engine.send(token, dst=last)
    handle.wait()
    assert is_right()
    assert handle.is_completed()
    engine.destroy_process_group(group)
