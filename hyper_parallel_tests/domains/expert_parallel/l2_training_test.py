"""Experts divided over ranks against one card: output, loss with its balancing part, gradients and parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from torch import Tensor, nn

from hyper_parallel_tests.domains.expert_parallel.networks import (
    BALANCE,
    STEPS,
    TOKENS,
    batch_of,
    divided_block,
    rows_of_rank,
    sgd,
    shape_of,
    sum_over_ranks,
    train_on_one_card,
    train_on_ranks,
    whole_batch,
    whole_block,
)
from hyper_parallel_tests.domains.expert_parallel.setting import EXPERTS
from hyper_parallel_tests.harness import (
    assert_bitwise_repeatable,
    assert_close,
    assert_parity,
    contract,
    train,
    train_baseline,
)
from hyper_parallel_tests.models.decoder import decoder_batch
from hyper_parallel_tests.models.moe import QWEN, MoeShape, moe_decoder, moe_loss

SHAPES = {
    "top_1": shape_of(1),
    "top_2": shape_of(2),
    "all": shape_of(EXPERTS),
    "shared": shape_of(2, shared=True, normed=True),
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
each_load = pytest.mark.parametrize("tokens", TOKENS)


@contract("EP-2-01")
@each_shape
@pytest.mark.parametrize("tokens", ["even", "crowded"])
def test_training(engine, world, ledger, shape, tokens):
    """Over two steps loss, norm, every expert's gradients and parameters are the single card's."""
    candidate = train_on_ranks(engine, world, divided_block(engine, world, shape), tokens)
    assert_parity(candidate, train_on_one_card(world, shape, tokens), ledger["ep_fp32"])


@contract("EP-2-01")
@each_load
def test_training_with_any_load(engine, world, ledger, tokens):
    """The same where ranks have unequally many tokens or none, and where most tokens choose the same experts."""
    shape = SHAPES["shared"]
    candidate = train_on_ranks(engine, world, divided_block(engine, world, shape), tokens)
    assert_parity(candidate, train_on_one_card(world, shape, tokens), ledger["ep_fp32"])


@contract("EP-2-01")
def test_crowded_tokens_are_crowded(engine, world):
    """The crowded load is one: an expert has more than twice its even share of the assignments, and one has none."""
    model = divided_block(engine, world, SHAPES["top_2"])
    model(rows_of_rank(world, "crowded"))
    counts = model.moe.routing.experts.flatten().bincount(minlength=EXPERTS)
    assert counts.max() > 2 * counts.sum() / EXPERTS
    assert counts.min() == 0


@contract("EP-2-01")
def test_all_tokens_to_one_expert(engine, world, ledger):
    """The same where every token of every rank goes to one expert, and all other ranks' experts have nothing."""
    shape = SHAPES["top_1"]
    model = divided_block(engine, world, shape)
    model(rows_of_rank(world, "identical"))
    assert len(set(model.moe.routing.experts.flatten().tolist())) == 1
    candidate = train_on_ranks(engine, world, model, "identical")
    assert_parity(candidate, train_on_one_card(world, shape, "identical"), ledger["ep_fp32"])


@contract("EP-2-01")
@each_shape
@each_load
def test_output(engine, world, ledger, shape, tokens):
    """Each rank gets the single card's output for its own tokens, none where it has none."""
    found = divided_block(engine, world, shape)(rows_of_rank(world, tokens))
    whole = whole_block(world, shape)(whole_batch(world, tokens).inputs)
    first = sum(len(batch_of(rank, tokens).inputs) for rank in range(world.rank))
    expected = whole[first : first + len(found)]
    why = "a rank may have no tokens"
    assert_close(found.detach(), expected.detach(), ledger["ep_fp32"], what="output", zero_because=why)


@contract("EP-2-01")
def test_experts_on_some_ranks_each(engine, world, ledger):
    """So does a layer whose experts are divided over half of the ranks and copied to the others."""
    shape, mesh = SHAPES["shared"], world.mesh(dp=2, ep=world.size // 2)
    model = divided_block(engine, world, shape, mesh=mesh["ep"])
    candidate = train_on_ranks(engine, world, model, "uneven", mesh)
    assert_parity(candidate, train_on_one_card(world, shape, "uneven"), ledger["ep_fp32"])


def decoder_shares(model: nn.Module, batch: Any, *, engine: Any, mesh: Any) -> Tensor:
    """This rank's share of `moe_loss`."""
    balance = partial(engine.load_balancing_loss, device_mesh=mesh)
    return moe_loss(model, batch, balance=balance, coefficient=BALANCE, share=1 / mesh.size())


DECODERS = {"plan": MoeShape(dense_layers=1, tied=False, vocab=24, seq=8), "qwen": QWEN}


@contract("EP-2-01")
@pytest.mark.parametrize("shape", DECODERS.values(), ids=DECODERS)
def test_decoder(engine, world, ledger, shape):
    """A decoder with layers of 4 experts top-2, and Qwen3's shape with 16 experts top-4, train as on one card."""
    mesh, model = world.mesh(ep=world.size), moe_decoder(shape).to(world.device)
    for layer in model.expert_layers():
        engine.ExpertParallel().apply(layer.experts, mesh)
    batches = [decoder_batch(seed, rows=4, shape=shape).to(world.device) for seed in range(STEPS)]
    candidate = train(
        model,
        [one.part(world.rank, world.size) for one in batches],
        partial(decoder_shares, engine=engine, mesh=mesh),
        optimizer=sgd,
        average=sum_over_ranks,
        before_update=lambda model: engine.synchronize_moe_gradients(model, mesh, reduce_op_type="sum"),
    )
    whole = moe_decoder(shape).to(world.device)
    baseline = train_baseline(whole, batches, partial(moe_loss, coefficient=BALANCE), optimizer=sgd)
    assert_parity(candidate, baseline, ledger["ep_fp32"])


@contract("EP-2-01")
def test_training_repeats_bit_by_bit(engine, world):
    """The same training again in the same process gives the same bits."""
    assert_bitwise_repeatable(
        lambda: train_on_ranks(engine, world, divided_block(engine, world, SHAPES["shared"]), "uneven").steps
    )
