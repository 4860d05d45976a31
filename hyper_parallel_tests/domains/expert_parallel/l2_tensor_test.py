"""Experts divided over ranks, and each expert's width over others."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from hyper_parallel_tests.domains.expert_parallel.networks import (
    STEPS,
    Block,
    batch_of,
    block,
    loss_share,
    sgd,
    shape_of,
    train_on_one_card,
    whole_batch,
)
from hyper_parallel_tests.harness import World, assert_close, assert_parity, contract, mean_over_ranks, train
from hyper_parallel_tests.harness.judging.parity import Track

SHAPES = {"top_1": shape_of(1), "shared": shape_of(2, shared=True)}


def mesh_of(world: World) -> Any:
    """(ep, tp): ranks of one tp group have the same tokens."""
    return world.mesh(ep=world.size // 2, tp=2)


def divided(engine: Any, world: World, shape: Any, **style: Any) -> Block:
    model = block(engine, world, shape)
    engine.ExpertTensorParallel(**style).apply(model.moe.experts, mesh_of(world))
    return model


def train_on_grid(engine: Any, world: World, model: Block, tokens: str) -> Track:
    """Each ep rank has its tokens, and everything but the experts is reduced over ep alone."""
    along_ep = mesh_of(world)["ep"]
    ranks, own = along_ep.size(), along_ep.get_local_rank()
    elements = whole_batch(world, tokens, ranks=ranks).targets.numel()
    return train(
        model,
        [batch_of(own, tokens, seed).to(world.device) for seed in range(STEPS)],
        partial(loss_share, engine=engine, mesh=along_ep, elements=elements),
        optimizer=sgd,
        average=lambda share: mean_over_ranks(share) * ranks,
        before_update=lambda model: engine.synchronize_moe_gradients(model, along_ep, reduce_op_type="sum"),
    )


@contract("EP-2-03")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("tokens", ["uneven", "crowded"])
def test_training(engine, world, ledger, shape, tokens):
    """Over two steps loss, norm, every expert's gradients and parameters are the single card's."""
    candidate = train_on_grid(engine, world, divided(engine, world, shape), tokens)
    baseline = train_on_one_card(world, shape, tokens, ranks=world.size // 2)
    assert_parity(candidate, baseline, ledger["ep_fp32"])


@contract("EP-2-03")
def test_late_combine_changes_no_bit(engine, world, ledger):
    """Nor does it when rows come back while the shared expert computes."""
    shape = SHAPES["shared"]
    late = train_on_grid(engine, world, divided(engine, world, shape, async_combine=True), "uneven")
    at_once = train_on_grid(engine, world, divided(engine, world, shape), "uneven")
    assert_parity(late, at_once, ledger["exact"], own_because="overlap changes no bit")
    assert_parity(late, train_on_one_card(world, shape, "uneven", ranks=world.size // 2), ledger["ep_fp32"])


@contract("EP-2-03")
def test_ranks_of_a_group_agree(engine, world, ledger):
    """Ranks that have the same tokens get the same output and the same gradient of their tokens, bit for bit."""
    mesh = mesh_of(world)
    model = divided(engine, world, SHAPES["shared"])
    rows = batch_of(mesh.get_local_rank("ep"), "uneven").inputs.to(world.device).requires_grad_()
    output = model(rows)
    output.square().sum().backward()
    for what, mine in (("output", output.detach()), ("gradient", rows.grad)):
        first = mine.clone()
        engine.broadcast(first, src=world.rank - mesh.get_local_rank("tp"), group=mesh["tp"].get_group())
        assert_close(mine, first, ledger["exact"], what=what)
