"""Sparse attention with an indexer over a divided sequence, against one card that has all of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.domains.context_parallel.reference import (
    attention,
    best_keys,
    chosen_keys,
    index_scores,
    indexer_loss,
    part,
    seen_keys,
)
from hyper_parallel_tests.domains.context_parallel.setting import BATCH, Case
from hyper_parallel_tests.harness import World, assert_close, assert_equal, contract, mean_over_ranks

INDEX_HEADS, INDEX_WIDTH = 3, 4
# Fewer keys than a rank has, about half of them, and more than there are.
TOP_K = {"few": 2, "half": 7, "more_than_there_are": 40}
# Which dimension of each tensor is the tokens'.
TOKENS_DIMS = {"q": 2, "k": 2, "v": 2, "weight": 2, "index_q": 1, "index_k": 1, "index_weights": 1}

either_order = pytest.mark.parametrize("load_balance", [False, True], ids=["in_order", "zig_zag"])
each_topk = pytest.mark.parametrize("topk", TOP_K.values(), ids=TOP_K)
each_length = pytest.mark.parametrize("tokens", [16, 13], ids=["even", "uneven"])
either_variant = pytest.mark.parametrize("variant", ["sparse", "dense"])


def tensors(world: World, tokens: int, tied: bool = False) -> dict[str, Tensor]:
    """What attention and indexer get, the same on all ranks; with `tied` many index scores are equal."""
    source = world.generator(100 + tokens)
    index = {
        "index_q": torch.randn(BATCH, tokens, INDEX_HEADS, INDEX_WIDTH, generator=source),
        "index_k": torch.randn(BATCH, tokens, INDEX_WIDTH, generator=source),
        "index_weights": torch.randn(BATCH, tokens, INDEX_HEADS, generator=source),
    }
    if tied:
        # Small whole numbers, whose products and sums are exact: equal scores are equal in every order of the sum.
        index = {name: one.round() for name, one in index.items()}
    index = {name: one.to(world.device) for name, one in index.items()}
    return Case(tokens, 8, 4).tensors(world) | index


def own(world: World, whole: dict[str, Tensor], load_balance: bool) -> dict[str, Tensor]:
    """This rank's part of the tensors."""
    return {name: part(one, TOKENS_DIMS[name], world.rank, world.size, load_balance) for name, one in whole.items()}


def choose(engine: Any, world: World, mine: dict[str, Tensor], topk: int, **options: Any) -> Tensor:
    """The keys that the engine's indexer chooses for this rank's queries."""
    return engine.dsa_indexer(
        mine["index_q"], mine["index_k"], mine["index_weights"], topk, world.mesh(cp=world.size), **options
    )


def with_gradients(mine: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    """Copies of the tensors that collect gradients where they are named."""
    return {name: one.clone().requires_grad_(name in names) for name, one in mine.items()}


def gradients(mine: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those that have come."""
    return {f"gradient of {name}": one.grad for name, one in mine.items() if one.grad is not None}


@contract("CP-2-04")
@either_order
@each_topk
@each_length
@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "tied"])
def test_choice_of_keys(engine, world, load_balance, topk, tokens, tied):
    """The best keys of the whole sequence, the earlier of equal ones first, and none where there are no more."""
    whole = tensors(world, tokens, tied)
    scores = index_scores(whole["index_q"], whole["index_k"], whole["index_weights"])
    expected = part(best_keys(scores, topk), 1, world.rank, world.size, load_balance)
    mine = own(world, whole, load_balance)
    found = choose(engine, world, mine, topk, load_balance=load_balance, seq_len=tokens)
    assert_equal(found.cpu(), expected, what="chosen keys")


@contract("CP-2-04")
@either_order
@each_topk
@each_length
def test_sparse_attention(engine, world, ledger, load_balance, topk, tokens):
    """Output, loss and gradients over the chosen keys are those of one card."""
    whole = with_gradients(tensors(world, tokens), "q", "k", "v")
    scores = index_scores(whole["index_q"], whole["index_k"], whole["index_weights"])
    indices = best_keys(scores, topk)
    output = attention(whole["q"], whole["k"], whole["v"], chosen_keys(indices, tokens).to(world.device))
    loss = (output * whole["weight"]).sum()
    loss.backward()
    expected = gradients(whole) | {"output": output.detach()}
    expected = {name: part(one, 2, world.rank, world.size, load_balance) for name, one in expected.items()}

    mine = with_gradients(own(world, tensors(world, tokens), load_balance), "q", "k", "v")
    options = {"load_balance": load_balance, "seq_len": tokens}
    chosen = choose(engine, world, mine, topk, **options)
    found = engine.dsa_sparse_attention(mine["q"], mine["k"], mine["v"], chosen, world.mesh(cp=world.size), **options)
    own_loss = (found * mine["weight"]).sum()
    own_loss.backward()
    got = gradients(mine) | {"output": found.detach(), "loss": mean_over_ranks(own_loss) * world.size}
    assert_close(got, expected | {"loss": loss.detach()}, ledger["cp_fp32"], what="sparse attention")


@contract("CP-2-04")
@either_order
@either_variant
@each_topk
@each_length
def test_indexer_loss(engine, world, ledger, load_balance, variant, topk, tokens):
    """The ranks' shares add up to one card's loss; it moves the indexer as there, and nothing else."""
    names = ("index_q", "index_k", "index_weights")
    whole = with_gradients(tensors(world, tokens), *names)
    scores = index_scores(whole["index_q"], whole["index_k"], whole["index_weights"])
    seen = seen_keys(tokens, causal=True)
    if variant == "sparse":
        seen = chosen_keys(best_keys(scores.detach(), topk), tokens)
    loss = indexer_loss(whole["q"], whole["k"], scores, seen.to(world.device))
    loss.backward()
    expected = {name: part(one, 1, world.rank, world.size, load_balance) for name, one in gradients(whole).items()}

    mine = with_gradients(own(world, tensors(world, tokens), load_balance), "q", "k", *names)
    options = {"load_balance": load_balance, "seq_len": tokens}
    chosen = choose(engine, world, mine, topk, **options) if variant == "sparse" else None
    share = engine.dsa_indexer_loss(
        mine["q"],
        mine["k"],
        mine["index_q"],
        mine["index_k"],
        mine["index_weights"],
        chosen,
        world.mesh(cp=world.size),
        variant=variant,
        **options,
    )
    share.backward()
    got = gradients(mine) | {"loss": mean_over_ranks(share) * world.size}
    # Of a rank's queries or keys none may move the indexer: a first token alone has nothing to choose between.
    alone = "a query with one key has no loss"
    assert_close(got, expected | {"loss": loss.detach()}, ledger["cp_fp32"], what="indexer", zero_because=alone)


@contract("CP-2-04")
def test_no_keys_at_all(engine, world):
    """An indexer that chooses no key is refused."""
    mine = own(world, tensors(world, 16), False)
    with pytest.raises(ValueError, match=r"topk.*\b0\b"):
        choose(engine, world, mine, 0)
