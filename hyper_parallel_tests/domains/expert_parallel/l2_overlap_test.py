"""Transfers of rows beside the computation: when they go on, and that they change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.expert_parallel.networks import (
    SHARED,
    block,
    divided_block,
    rows_of_rank,
    train_by_style,
    train_on_one_card,
)
from hyper_parallel_tests.domains.expert_parallel.observation import moments
from hyper_parallel_tests.domains.expert_parallel.setting import EXPERTS, mesh_of, outgoing
from hyper_parallel_tests.harness import World, assert_close, assert_equal, assert_parity, contract


class LateExperts(nn.Module):
    """Doubles its rows; on the last rank only when all other ranks have said that they have gone on."""

    def __init__(self, engine: Any, world: World) -> None:
        super().__init__()
        self.of_each = nn.Parameter(torch.zeros(EXPERTS))
        self.engine, self.world = engine, world

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        if self.world.rank == self.world.size - 1:
            token = torch.zeros(1, device=self.world.device)
            for rank in range(self.world.rank):
                self.engine.recv(token, src=rank)
        return rows * 2


@contract("EP-2-02")
def test_late_combine_does_not_wait(engine, world):
    """The module returns while another rank has not computed yet, and what is read of it is there all the same."""
    module = engine.ExpertParallel(async_combine=True).apply(LateExperts(engine, world), mesh_of(world))
    rows, counts = outgoing(world, "uneven")
    found = module(rows, counts)
    if world.rank != world.size - 1:
        engine.send(torch.zeros(1, device=world.device), dst=world.size - 1)
    assert_equal(found + 0, rows * 2, what="output")


@contract("EP-2-02")
def test_shared_expert_computes_while_rows_come_back(engine, world, ledger):
    """The shared expert has begun on every rank before the last rank's experts have computed."""
    model = block(engine, world, SHARED)
    model.moe.experts = engine.ExpertParallel(async_combine=True).apply(LateExperts(engine, world), mesh_of(world))

    def tell(*_: Any) -> None:
        if world.rank != world.size - 1:
            engine.send(torch.zeros(1, device=world.device), dst=world.size - 1)

    hook = model.moe.shared.register_forward_pre_hook(tell)
    tokens = rows_of_rank(world, "uneven")
    found = model.moe(tokens)
    hook.remove()
    expected = 2 * tokens * model.moe.routing.weights.sum(1, keepdim=True) + model.moe.shared(tokens)
    assert_close(found.detach(), expected.detach(), ledger["ep_fp32"], what="output")


@contract("EP-2-02")
@pytest.mark.parametrize("chunks", [1, 2])
def test_chunks_are_under_way_before_the_first_is_used(engine, world, chunks):
    """All chunks' rows have started when the first is waited for, and each starts back before the next is used."""
    model = divided_block(engine, world, SHARED, style=engine.ExpertParallel(fused=True, chunks=chunks))
    given = rows_of_rank(world, "even").requires_grad_()
    with moments() as forward:
        output = model(given)
    with moments() as backward:
        output.square().sum().backward()
    there_and_back = ["start"] * chunks + ["wait", "start"] * chunks + ["wait"] * chunks
    assert forward.of_rows() == there_and_back
    assert backward.of_rows() == there_and_back


@contract("EP-2-02")
@pytest.mark.parametrize("tokens", ["even", "uneven", "rank_without_tokens"])
def test_late_combine_changes_no_bit(engine, world, ledger, tokens):
    """With rows on their way back while the shared expert computes, training is bit for bit that without."""
    late = train_by_style(engine, world, tokens, async_combine=True)
    at_once = train_by_style(engine, world, tokens)
    assert_parity(late, at_once, ledger["exact"], own_because="overlap changes no bit")
    assert_parity(late, train_on_one_card(world, SHARED, tokens), ledger["ep_fp32"])
