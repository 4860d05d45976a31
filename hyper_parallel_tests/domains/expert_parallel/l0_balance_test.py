"""What keeps the experts equally busy: losses, and a bias that follows the counts."""

from __future__ import annotations

import math

import pytest
import torch

from hyper_parallel_tests.domains.expert_parallel.reference import balancing
from hyper_parallel_tests.harness import assert_close, assert_equal, contract

TOKENS, EXPERTS, DIM = 12, 4, 8


def logits() -> torch.Tensor:
    return torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(3))


@contract("EP-0-01")
@pytest.mark.parametrize("top_k", [1, 2, EXPERTS])
@pytest.mark.parametrize("score_func", ["softmax", "sigmoid"])
def test_balancing_loss_is_the_formula(engine, ledger, top_k, score_func):
    """It is the number of experts times the sum of share times mean score."""
    routing = engine.route_tokens(logits(), top_k, score_func=score_func)
    found = engine.load_balancing_loss(routing.scores, routing.experts)
    assert_close(found, torch.tensor(balancing(routing.scores, routing.experts)), ledger["ep_fp32"], what="loss")


@contract("EP-0-01")
@pytest.mark.parametrize("top_k", [1, 2])
def test_balancing_loss_between_its_bounds(engine, ledger, top_k):
    """It is 1 where all is even, whatever top_k, and E where one expert has everything."""
    even = torch.full((EXPERTS, EXPERTS), 1 / EXPERTS)
    choices = torch.arange(EXPERTS)[:, None].add(torch.arange(top_k)) % EXPERTS
    assert_close(engine.load_balancing_loss(even, choices), torch.tensor(1.0), ledger["ep_fp32"], what="even")
    one = torch.eye(EXPERTS)[[2] * TOKENS]
    alone = engine.load_balancing_loss(one, torch.full((TOKENS, 1), 2))
    assert_close(alone, torch.tensor(float(EXPERTS)), ledger["ep_fp32"], what="one expert")


@contract("EP-0-01")
def test_balancing_loss_has_a_gradient_by_the_scores(engine, ledger):
    """Shares are constants: the gradient is E * share / tokens for each score of a softmax."""
    scores = logits().softmax(1).requires_grad_()
    experts = engine.route_tokens(logits(), 2).experts
    engine.load_balancing_loss(scores, experts).backward()
    shares = torch.stack([(experts == one).sum() / experts.numel() for one in range(EXPERTS)])
    # Of scores / their sum, of which the sum is 1.
    by_normed = (EXPERTS * shares / TOKENS).expand(TOKENS, -1)
    expected = by_normed - (by_normed * scores.detach()).sum(1, keepdim=True)
    assert_close(scores.grad, expected, ledger["ep_fp32"], what="gradient")


@contract("EP-0-01")
def test_z_loss_is_the_formula(engine, ledger):
    """It is the mean of the squared log of the summed exponentials."""
    expected = sum(math.log(sum(math.exp(one) for one in row)) ** 2 for row in logits().tolist()) / TOKENS
    assert_close(engine.router_z_loss(logits()), torch.tensor(expected), ledger["ep_fp32"], what="loss")


@contract("EP-0-01")
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_attached_loss_acts_in_backward_alone(engine, ledger, scale):
    """What it is attached to keeps value and gradient, and the loss' own gradient is there, times the scale."""
    weight = torch.randn(EXPERTS, DIM, generator=torch.Generator().manual_seed(1)).requires_grad_()
    tokens = torch.randn(TOKENS, DIM, generator=torch.Generator().manual_seed(5)).requires_grad_()

    def gradients(attached: bool) -> list[torch.Tensor]:
        scores = (tokens @ weight.T).softmax(1)
        loss = engine.load_balancing_loss(scores, engine.route_tokens(tokens @ weight.T, 2).experts)
        hidden = tokens * 3
        if attached:
            held = engine.attach_auxiliary_loss(hidden, loss, scale=scale)
            assert_equal(held.detach(), hidden.detach(), what="tensor")
            return list(torch.autograd.grad(held.square().sum(), (tokens, weight)))
        return list(torch.autograd.grad(hidden.square().sum() + scale * loss, (tokens, weight)))

    assert_close(gradients(True), gradients(False), ledger["ep_fp32"], what="gradient")


@contract("EP-0-01")
def test_losses_of_no_token_are_zero(engine):
    """A rank without tokens adds nothing to the losses, and no NaN to the gradients."""
    none = logits()[:0].requires_grad_()
    routing = engine.route_tokens(none, 2)
    total = engine.load_balancing_loss(routing.scores, routing.experts) + engine.router_z_loss(none)
    total.backward()
    assert total.item() == 0.0
    assert none.grad.shape == (0, EXPERTS)


@contract("EP-0-01")
def test_bias_follows_the_counts(engine, ledger):
    """An expert with more than the mean loses the rate, one with less gains it, and the counts start again."""
    moe = engine.MoE(DIM, DIM, EXPERTS, 2, load_balance_coeff=0.25)
    moe.tokens_per_expert.copy_(torch.tensor([9.0, 1.0, 5.0, 5.0]))
    engine.update_expert_bias(moe)
    assert_equal(moe.expert_bias, torch.tensor([-0.25, 0.25, 0.0, 0.0]), what="bias")
    assert_equal(moe.tokens_per_expert, torch.zeros(EXPERTS), what="counts")
    moe.tokens_per_expert.copy_(torch.tensor([0.0, 8.0, 0.0, 0.0]))
    engine.update_expert_bias(moe)
    assert_equal(moe.expert_bias, torch.tensor([0.0, 0.0, 0.25, 0.25]), what="bias")


@contract("EP-0-01")
def test_layer_counts_what_it_trains_with(engine, ledger):
    """Counts are of all assignments in training, dropped ones too, over several calls, and none in evaluation."""
    moe = engine.MoE(DIM, DIM, EXPERTS, 2, load_balance_coeff=0.25, capacity_factor=0.5)
    tokens = torch.randn(TOKENS, DIM, generator=torch.Generator().manual_seed(5))
    expected = torch.zeros(EXPERTS)
    for part in (tokens, tokens[:5]):
        moe(part)
        expected += torch.stack([(moe.routing.experts == one).sum() for one in range(EXPERTS)])
    moe.eval()(tokens)
    assert_equal(moe.tokens_per_expert, expected, what="counts")


@contract("EP-0-01")
def test_layer_chooses_by_its_bias(engine, ledger):
    """An expert whose bias is large is everybody's first, and its weight is still its score."""
    moe = engine.MoE(DIM, DIM, EXPERTS, 1, load_balance_coeff=0.25)
    tokens = torch.randn(TOKENS, DIM, generator=torch.Generator().manual_seed(5))
    moe.expert_bias[3] = 2.0
    moe(tokens)
    assert moe.routing.experts.flatten().tolist() == [3] * TOKENS
    assert_close(moe.routing.weights[:, 0], moe.routing.scores[:, 3], ledger["exact"], what="weights")


@contract("EP-0-01")
def test_bias_that_is_not_there(engine):
    """A layer without a bias says what it would have to be made with."""
    with pytest.raises(ValueError, match="load_balance_coeff"):
        engine.update_expert_bias(engine.MoE(DIM, DIM, EXPERTS, 2))
