"""Gradients of experts, router and shared expert: what is summed over which ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.domains.expert_parallel.networks import (
    SHARED,
    Block,
    batch_of,
    block,
    divided_block,
    gradients,
    loss_share,
    rows_of_rank,
    whole_batch,
    whole_block,
    whole_loss,
)
from hyper_parallel_tests.harness import World, assert_close, assert_equal, contract, in_clean_process, trace

TOKENS = "uneven"


def on_one_card(world: World) -> dict[str, Tensor]:
    """The gradients of the loss of all ranks' tokens."""
    return in_clean_process(whole_gradients, world)


def whole_gradients(world: World) -> dict[str, Tensor]:
    """What `on_one_card` computes there."""
    model = whole_block(world, SHARED)
    whole_loss(model, whole_batch(world, TOKENS)).backward()
    return gradients(model)


def backward(engine: Any, world: World, model: Block, mesh: Any) -> Block:
    """Runs backward from this rank's share of the loss; `mesh` is over all ranks, in one dimension."""
    rows = batch_of(world.rank, TOKENS).to(world.device)
    elements = whole_batch(world, TOKENS).targets.numel()
    loss_share(model, rows, engine=engine, mesh=mesh, elements=elements).backward()
    return model


def only(found: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name: one for name, one in found.items() if name.startswith(part)}


@contract("EP-1-02")
@pytest.mark.parametrize("fused", [False, True], ids=["composed", "fused"])
def test_experts_sum_over_all_ranks_tokens(engine, world, ledger, fused):
    """After backward and before anything else an expert's gradient is that of all ranks' loss."""
    mesh = world.mesh(ep=world.size)
    model = divided_block(engine, world, SHARED, style=engine.ExpertParallel(fused=fused))
    found = gradients(backward(engine, world, model, mesh), "moe.experts")
    assert_close(found, only(on_one_card(world), "moe.experts"), ledger["ep_fp32"], what="gradient")


@contract("EP-1-02")
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_synchronized_gradients_are_one_cards(engine, world, ledger, op):
    """Everything has the gradient of the sum of all losses, or of their mean, experts and the others alike."""
    mesh = world.mesh(ep=world.size)
    model = backward(engine, world, divided_block(engine, world, SHARED), mesh)
    engine.synchronize_moe_gradients(model, mesh, reduce_op_type=op)
    ranks = world.size if op == "avg" else 1
    expected = {name: one / ranks for name, one in on_one_card(world).items()}
    assert_close(gradients(model), expected, ledger["ep_fp32"], what="gradient")


@contract("EP-1-02")
def test_experts_are_in_no_reduction(engine, world):
    """Over the ranks that experts are divided over, router and shared expert are reduced, each once, and no expert."""
    mesh = world.mesh(ep=world.size)
    model = backward(engine, world, divided_block(engine, world, SHARED), mesh)
    before = gradients(model, "moe.experts")
    with trace.collectives() as sent:
        engine.synchronize_moe_gradients(model, mesh, reduce_op_type="sum")
    reduced = [one for one in sent if one.dtype == "float32"]
    whole = [tuple(one.shape) for name, one in model.named_parameters() if not name.startswith("moe.experts")]
    assert sorted(one.shapes[0] for one in reduced) == sorted(whole)
    assert {one.op for one in reduced} == {"all_reduce"}
    assert_equal(gradients(model, "moe.experts"), before, what="gradient")


@contract("EP-1-02")
def test_experts_on_some_ranks_each(engine, world, ledger):
    """Where each expert is on two ranks it is summed over those, and the others over all ranks; both are one card's."""
    mesh = world.mesh(dp=2, ep=world.size // 2)
    model = block(engine, world, SHARED)
    engine.ExpertParallel().apply(model.moe.experts, mesh["ep"])
    backward(engine, world, model, world.mesh(all=world.size))
    with trace.collectives() as sent:
        engine.synchronize_moe_gradients(model, mesh, reduce_op_type="sum")
    copies = tuple(rank for rank in range(world.size) if rank % (world.size // 2) == world.rank % (world.size // 2))
    experts = {tuple(one.to_local().shape) for one in model.moe.experts.parameters()}
    over = {one.ranks for one in sent if one.dtype == "float32" and one.shapes[0] in experts}
    assert over == {copies}
    assert_close(gradients(model), on_one_card(world), ledger["ep_fp32"], what="gradient")


@contract("EP-1-02")
@pytest.mark.parametrize("dims", ["ep", "dp_ep", "ep_dp"])
def test_absent_gradients_count_as_zeros(engine, world, ledger, dims):
    """A rank that has no gradient gets the others' sum, and what no rank has stays absent; so on any mesh."""
    half = world.size // 2
    sizes = {"ep": {"ep": world.size}, "dp_ep": {"dp": 2, "ep": half}, "ep_dp": {"ep": half, "dp": 2}}[dims]
    mesh = world.mesh(**sizes)
    model = divided_block(engine, world, SHARED, mesh=mesh["ep"])
    backward(engine, world, model, world.mesh(all=world.size))
    sums = {name: one.grad.clone() for name, one in model.moe.shared.named_parameters()}
    for own in sums.values():
        if world.rank == 0:
            own.zero_()
        engine.all_reduce(own)
    if world.rank == 0:
        for parameter in model.moe.shared.parameters():
            parameter.grad = None
    model.moe.router.gate.weight.grad = None
    engine.synchronize_moe_gradients(model, mesh, reduce_op_type="sum")
    assert model.moe.router.gate.weight.grad is None
    found = {name: one.grad for name, one in model.moe.shared.named_parameters()}
    assert all(one is not None for one in found.values()), (
        f"absent still: {[name for name, one in found.items() if one is None]}"
    )
    assert_close(found, sums, ledger["ep_fp32"], what="gradient")


@contract("EP-1-02")
def test_router_stays_the_same_on_all_ranks(engine, world, ledger):
    """After an update with synchronised gradients no bit of router and shared expert differs between ranks."""
    mesh = world.mesh(ep=world.size)
    model = backward(engine, world, divided_block(engine, world, SHARED), mesh)
    engine.synchronize_moe_gradients(model, mesh)
    with torch.no_grad():
        for parameter in [*model.moe.router.parameters(), *model.moe.shared.parameters()]:
            parameter -= parameter.grad
            copies = [torch.empty_like(parameter) for _ in range(world.size)]
            engine.all_gather(copies, parameter)
            for rank, copy in enumerate(copies):
                assert_close(copy, parameter, ledger["exact"], what=f"parameter on rank {rank}")


@contract("EP-1-02")
def test_expert_without_rows_has_zero_gradients(engine, world):
    """Where all tokens go to one expert the others' gradients are zeros and not absent, on every rank."""
    model = divided_block(engine, world, load_balance_coeff=1.0)
    model.moe.expert_bias[-1], model.moe.expert_bias[-2] = 9.0, 8.0
    model(rows_of_rank(world, TOKENS)).square().sum().backward()
    for name, gradient in gradients(model, "moe.experts").items():
        assert_equal(gradient[:-2], torch.zeros_like(gradient[:-2]), what=name)
        assert gradient[-2:].flatten(1).any(1).all()
