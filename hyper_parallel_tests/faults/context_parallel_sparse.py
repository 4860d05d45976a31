"""Faults of sparse attention on torch_native: which keys an indexer chooses, and what it learns."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.sparse_attention"


@fault(
    id="cp-indexer-chooses-among-own-keys",
    symptom="Long-range recall is lost with context parallelism: a query sees keys of its own rank alone.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-04"],
)
def indexer_chooses_among_own_keys(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_causal", parameters=("split", "products"))
    def causal(original: Any, split: Any, products: Any) -> Any:
        seen = original(split, products)
        own = torch.zeros(seen.shape[-1], dtype=torch.bool).index_fill_(0, split.own, True)
        patch.reached()
        return seen & own


@fault(
    id="cp-ties-go-to-the-later-key",
    symptom="With coarse scores, runs on other numbers of ranks choose other keys and part from each other.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-04"],
    ranks="all",
)
def ties_go_to_the_later_key(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_index_scores", parameters=("index_q", "index_k", "weights"))
    def scores(original: Any, index_q: Any, index_k: Any, weights: Any) -> Any:
        products = original(index_q, index_k, weights)
        patch.reached()
        return products + torch.linspace(0, 1e-4, products.shape[-1])


@fault(
    id="cp-missing-keys-are-the-first",
    symptom="The first token of a text gets too much attention from the tokens just behind it.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-04"],
)
def missing_keys_are_the_first(patch: Patch) -> None:
    @patch.around(f"{_OURS}:dsa_indexer", parameters=("index_q", "index_k", "weights", "topk", "device_mesh"))
    def choose(original: Any, *args: Any, **options: Any) -> Any:
        chosen = original(*args, **options)
        if (chosen < 0).any():
            patch.reached()
        return chosen.clamp(min=0)


@fault(
    id="cp-indexer-loss-is-a-mean-of-each-rank",
    symptom="The indexer's loss grows with the number of ranks and overrules the model's own.",
    capability="context_parallel",
    layer="l2",
    must_fail=["CP-2-04"],
    ranks="all",
)
def indexer_loss_is_a_ranks_mean(patch: Patch) -> None:
    @patch.around(f"{_OURS}:dsa_indexer_loss", parameters=("q", "k", "index_q", "index_k", "weights", "indices"))
    def loss(original: Any, *args: Any, **options: Any) -> Any:
        patch.reached()
        return original(*args, **options) * args[6].size()
