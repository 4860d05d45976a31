"""Which experts a token goes to, with what weights, and which assignments are dropped."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.expert_parallel.reference import best, kept, scores_of
from hyper_parallel_tests.harness import assert_close, assert_equal, contract

TOKENS, EXPERTS = 12, 6


def logits_of(kind: str) -> torch.Tensor:
    """(tokens, experts): no two alike, many alike, all alike, or one expert far ahead."""
    drawn = torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(3))
    return {
        "distinct": drawn,
        "ties": drawn.round(),
        "all_alike": torch.zeros_like(drawn),
        "one_ahead": drawn + 9.0 * torch.eye(EXPERTS)[4],
        "one_token": drawn[:1],
        "no_token": drawn[:0],
    }[kind]


KINDS = ["distinct", "ties", "all_alike", "one_ahead", "one_token", "no_token"]
each_kind = pytest.mark.parametrize("kind", KINDS)
each_score = pytest.mark.parametrize("score_func", ["softmax", "sigmoid"])


@contract("EP-0-01")
@each_kind
@each_score
@pytest.mark.parametrize("top_k", [1, 2, EXPERTS])
def test_the_best_are_chosen(engine, kind, score_func, top_k):
    """Each token has its best experts, best first, and of equal ones those with the lower number."""
    logits = logits_of(kind)
    found = engine.route_tokens(logits, top_k, score_func=score_func)
    expected = [best(row, top_k) for row in logits.tolist()]
    assert found.experts.tolist() == expected
    assert found.weights.shape == found.experts.shape == (len(logits), top_k)


@contract("EP-0-01")
@each_score
@pytest.mark.parametrize("route_norm", [False, True], ids=["raw", "normed"])
@pytest.mark.parametrize("top_k", [1, 2, EXPERTS])
def test_weights_are_scores(engine, ledger, score_func, route_norm, top_k):
    """A weight is the expert's score, divided by the sum of the chosen ones if configured, times the scale."""
    logits = logits_of("distinct")
    found = engine.route_tokens(logits, top_k, score_func=score_func, route_norm=route_norm, route_scale=2.5)
    scores = torch.tensor([scores_of(row, score_func) for row in logits.tolist()])
    weights = torch.tensor([[row[one] for one in best(row, top_k)] for row in scores.tolist()])
    if route_norm:
        weights = weights / weights.sum(1, keepdim=True)
    assert_close(found.scores, scores, ledger["ep_fp32"], what="scores")
    assert_close(found.weights, 2.5 * weights, ledger["ep_fp32"], what="weights")


@contract("EP-0-01")
@each_score
@pytest.mark.parametrize("route_norm", [False, True], ids=["raw", "normed"])
def test_bias_moves_the_choice_alone(engine, ledger, score_func, route_norm):
    """With a bias other experts are chosen, and their weights are made of the scores without it."""
    logits, bias = logits_of("distinct"), torch.tensor([0.6, -0.6, 0.0, 0.3, -0.3, 0.0])
    found = engine.route_tokens(logits, 2, score_func=score_func, route_norm=route_norm, expert_bias=bias)
    scores = [scores_of(row, score_func) for row in logits.tolist()]
    chosen = [best([s + b for s, b in zip(row, bias.tolist(), strict=True)], 2) for row in scores]
    assert chosen != [best(row, 2) for row in scores]
    assert found.experts.tolist() == chosen
    weights = torch.tensor([[row[one] for one in pair] for row, pair in zip(scores, chosen, strict=True)])
    if route_norm:
        weights = weights / weights.sum(1, keepdim=True)
    assert_close(found.weights, weights, ledger["ep_fp32"], what="weights")


@contract("EP-0-01")
def test_scores_are_computed_in_full_precision(engine, ledger):
    """bfloat16 logits give the scores of the same numbers in fp32, where two experts still differ."""
    logits = logits_of("distinct").to(torch.bfloat16)
    found = engine.route_tokens(logits, 2)
    expected = torch.tensor([scores_of(row, "softmax") for row in logits.tolist()])
    assert found.weights.dtype == torch.float32
    assert_close(found.scores, expected, ledger["ep_fp32"], what="scores")


@contract("EP-0-01")
@each_score
def test_gradient_goes_through_the_weights(engine, ledger, score_func):
    """The gradient of the weights is that of the scores at the chosen places, normed as they are."""
    logits = logits_of("distinct").requires_grad_()
    factors = torch.randn(TOKENS, 2, generator=torch.Generator().manual_seed(4))
    found = engine.route_tokens(logits, 2, score_func=score_func, route_norm=True)
    (found.weights * factors).sum().backward()
    twin = logits.detach().clone().requires_grad_()
    scores = twin.softmax(1) if score_func == "softmax" else twin.sigmoid()
    picked = torch.stack([row[best(row.tolist(), 2)] for row in scores])
    (picked / picked.sum(1, keepdim=True) * factors).sum().backward()
    assert_close(logits.grad, twin.grad, ledger["ep_fp32"], what="gradient")


@contract("EP-0-01")
@pytest.mark.parametrize("top_k", [0, EXPERTS + 1])
def test_impossible_number_of_choices(engine, top_k):
    """Fewer than one, or more than there are experts, is refused; the message has both numbers."""
    with pytest.raises(ValueError, match=rf"\b{top_k}\b.*\b{EXPERTS}\b"):
        engine.route_tokens(logits_of("distinct"), top_k)


@contract("EP-0-01")
def test_bias_of_another_number_of_experts(engine):
    """A bias that has not one number for each expert is refused, also where it would stretch to all of them."""
    with pytest.raises(ValueError, match=rf"\[1\].*\b{EXPERTS}\b"):
        engine.route_tokens(logits_of("distinct"), 2, expert_bias=torch.ones(1))


@contract("EP-0-01")
def test_unknown_names(engine):
    """Score functions and drop policies that there are not are refused and named."""
    with pytest.raises(ValueError, match="argmax"):
        engine.route_tokens(logits_of("distinct"), 2, score_func="argmax")
    with pytest.raises(ValueError, match="last"):
        engine.kept_assignments(engine.route_tokens(logits_of("distinct"), 2), 1, drop_policy="last")


@contract("EP-0-01")
def test_impossible_capacity(engine):
    """A capacity below nothing, and a factor that is not positive, are refused and named."""
    with pytest.raises(ValueError, match="-1"):
        engine.kept_assignments(engine.route_tokens(logits_of("distinct"), 2), -1)
    for factor in (0.0, -0.5):
        with pytest.raises(ValueError, match=str(factor)):
            engine.expert_capacity(TOKENS, 2, EXPERTS, factor)


@contract("EP-0-01")
def test_scores_that_vanish(engine):
    """A token whose sigmoids are all zero in floating point has weights of zero, and makes no NaN."""
    logits = torch.full((2, EXPERTS), -200.0).requires_grad_()
    found = engine.route_tokens(logits, 2, score_func="sigmoid", route_norm=True)
    assert_equal(found.weights.detach(), torch.zeros(2, 2), what="weights")
    loss = engine.load_balancing_loss(found.scores, found.experts)
    (loss + found.weights.sum()).backward()
    assert loss.item() == 0.0
    assert_equal(logits.grad, torch.zeros(2, EXPERTS), what="gradient")


@contract("EP-0-01")
@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "factor", "expected"),
    [
        (12, 1, 6, 1.0, 2),
        (12, 2, 6, 1.0, 4),
        (12, 2, 6, 1.25, 5),
        (10, 1, 4, 1.0, 3),
        (12, 2, 6, 0.5, 2),
        (0, 2, 6, 1.0, 0),
    ],
)
def test_capacity(engine, tokens, top_k, experts, factor, expected):
    """An expert takes its even share of the assignments times the factor, rounded up."""
    assert engine.expert_capacity(tokens, top_k, experts, factor) == expected


@contract("EP-0-01")
@each_kind
@pytest.mark.parametrize("capacity", [0, 1, 3, TOKENS])
@pytest.mark.parametrize("drop_policy", ["position", "probs"])
def test_kept_assignments(engine, kind, capacity, drop_policy):
    """Each expert keeps its first assignments, or those with the largest weights, up to its capacity."""
    routing = engine.route_tokens(logits_of(kind), 2)
    weights = routing.weights.flatten().tolist()
    preferred = list(range(len(weights))) if drop_policy == "position" else best(weights, len(weights))
    found = engine.kept_assignments(routing, capacity, drop_policy=drop_policy)
    assert_equal(found, kept(routing.experts, preferred, capacity), what="kept")


@contract("EP-0-01")
@pytest.mark.parametrize(
    "options",
    [{}, {"score_func": "sigmoid", "route_norm": True, "route_scale": 2.5}],
    ids=["default", "sigmoid_normed_scaled"],
)
def test_layer_routes_as_configured(engine, ledger, options):
    """A layer's router, and one by itself, choose and weigh by their gate's logits as they were told to."""
    tokens = torch.randn(TOKENS, 8, generator=torch.Generator().manual_seed(5))
    moe, router = engine.MoE(8, 8, EXPERTS, 2, **options), engine.TokenChoiceTopKRouter(8, EXPERTS, 2, **options)
    moe(tokens)
    for gate, found in ((moe.router.gate, moe.routing), (router.gate, router(tokens))):
        expected = engine.route_tokens(gate(tokens), 2, **options)
        assert_close(found.weights.detach(), expected.weights.detach(), ledger["exact"], what="weights")
        assert_close(found.scores.detach(), expected.scores.detach(), ledger["exact"], what="scores")
        assert found.experts.tolist() == expected.experts.tolist()


@contract("EP-0-01")
@pytest.mark.parametrize("drop_policy", ["position", "probs"])
def test_dropped_assignments_are_not_made_up_for(engine, ledger, drop_policy):
    """A layer with a capacity adds what its experts kept, with weights as they were."""
    moe = engine.MoE(8, 8, EXPERTS, 2, capacity_factor=0.5, route_norm=True, drop_policy=drop_policy)
    tokens = torch.randn(TOKENS, 8, generator=torch.Generator().manual_seed(5))
    found = moe(tokens)
    routing = moe.routing
    in_turn = list(range(2 * TOKENS))
    by_weight = best(routing.weights.flatten().tolist(), 2 * TOKENS)
    fits, others = (kept(routing.experts, one, 2) for one in (in_turn, by_weight))
    assert (fits != others).any()
    if drop_policy == "probs":
        fits = others
    expected = torch.zeros_like(tokens)
    for token, choice in fits.nonzero().tolist():
        counts = torch.zeros(EXPERTS, dtype=torch.int64)
        counts[routing.experts[token, choice]] = 1
        expected[token] += routing.weights[token, choice] * moe.experts(tokens[token : token + 1], counts)[0]
    assert_close(found.detach(), expected.detach(), ledger["ep_fp32"], what="output")


@contract("EP-0-01")
@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
def test_weights_are_applied_once(engine, ledger, before):
    """Rows are weighted after the experts, or before them, and not both."""
    moe = engine.MoE(8, 8, EXPERTS, 2, score_before_experts=before)
    tokens = torch.randn(TOKENS, 8, generator=torch.Generator().manual_seed(5))
    found = moe(tokens)
    expected = torch.zeros_like(tokens)
    for token, (experts, weights) in enumerate(zip(moe.routing.experts, moe.routing.weights, strict=True)):
        for expert, weight in zip(experts.tolist(), weights, strict=True):
            counts = torch.zeros(EXPERTS, dtype=torch.int64)
            counts[expert] = 1
            row = tokens[token : token + 1]
            expected[token] += (moe.experts(row * weight, counts) if before else moe.experts(row, counts) * weight)[0]
    assert_close(found.detach(), expected.detach(), ledger["ep_fp32"], what="output")
