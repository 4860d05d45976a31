"""What bounds and balances the experts' load, where tokens are on several ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from hyper_parallel_tests.domains.expert_parallel.networks import (
    DIM,
    PLAIN,
    Block,
    batch_of,
    divided_block,
    gradients,
    rows_of_rank,
    squared_error,
    sum_over_ranks,
    whole_batch,
)
from hyper_parallel_tests.domains.expert_parallel.reference import kept, order_of
from hyper_parallel_tests.domains.expert_parallel.setting import EXPERTS
from hyper_parallel_tests.harness import World, assert_close, assert_equal, contract, in_clean_process
from hyper_parallel_tests.models.moe import MoeLayer
from hyper_parallel_tests.models.seeding import build


class DroppingLayer(MoeLayer):
    """On one card: each expert keeps its first assignments, its even share of them rounded up."""

    def forward(self, tokens: Tensor) -> Tensor:
        weights, experts, _ = self.router(tokens)
        capacity = -(-experts.numel() // EXPERTS)
        fits = kept(experts, list(range(experts.numel())), capacity)
        assert not fits.all()
        order = torch.tensor(order_of(experts, fits))
        counts = torch.stack([((experts == one) & fits).sum() for one in range(EXPERTS)])
        source = order // experts.shape[1]
        made = self.experts(tokens[source], counts) * weights.flatten()[order].unsqueeze(1)
        return torch.zeros_like(tokens).index_add(0, source, made)


def with_drops(world: World) -> dict[str, Tensor]:
    """Gradients on one card, where each rank's tokens are dropped by themselves."""
    model = build(lambda: Block(DroppingLayer(PLAIN)), 0).to(world.device)
    for rank in range(world.size):
        squared_error(model, batch_of(rank, "crowded").to(world.device), DIM).backward()
    return gradients(model)


@contract("EP-2-01")
def test_dropped_assignments(engine, world, ledger):
    """With a capacity each rank drops of its own tokens, and what is dropped is in no gradient."""
    model = divided_block(engine, world, capacity_factor=1.0)
    squared_error(model, batch_of(world.rank, "crowded").to(world.device), DIM).backward()
    engine.synchronize_moe_gradients(model, world.mesh(ep=world.size), reduce_op_type="sum")
    assert_close(gradients(model), in_clean_process(with_drops, world), ledger["ep_fp32"], what="gradient")


@contract("EP-2-01")
def test_bias_follows_all_ranks(engine, world):
    """The bias is updated by the counts of all ranks, not by a rank's own, and is the same on all of them."""
    model = divided_block(engine, world, load_balance_coeff=0.25)
    model(rows_of_rank(world, "even"))
    own = model.moe.tokens_per_expert.clone()
    counts = own.clone()
    engine.all_reduce(counts)
    engine.update_expert_bias(model.moe, device_mesh=world.mesh(ep=world.size))
    by_own, by_all = (0.25 * (one.mean() - one).sign() for one in (own, counts))
    assert (by_own != by_all).any()
    assert_equal(model.moe.expert_bias, by_all, what="bias")


@contract("EP-2-01")
def test_z_loss_of_all_ranks(engine, world, ledger):
    """The ranks' shares of the z-loss add up to that of all tokens."""
    model = divided_block(engine, world)
    model(rows_of_rank(world, "uneven"))
    share = engine.router_z_loss(model.moe.router.logits, device_mesh=world.mesh(ep=world.size))
    whole = model.moe.router.gate(model.below(whole_batch(world, "uneven").inputs))
    expected = whole.logsumexp(1).square().mean()
    assert_close(sum_over_ranks(share), expected.detach(), ledger["ep_fp32"], what="loss")
