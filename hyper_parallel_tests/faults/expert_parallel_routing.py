"""Faults of expert parallelism on torch_native: which experts tokens choose, what is dropped, and in which order."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.expert_parallel"
_ROUTE = ("logits", "top_k")
_PERMUTE = ("tokens", "experts", "num_experts", "kept")


@fault(
    id="ep-bias-leaks-into-the-weights",
    symptom="Balancing by bias costs quality: experts that are seldom chosen get larger weights.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def bias_leaks_into_the_weights(patch: Patch) -> None:
    @patch.around(f"{_OURS}:route_tokens", parameters=_ROUTE)
    def route(original: Any, logits: Any, top_k: int, *, expert_bias: Any = None, **options: Any) -> Any:
        found = original(logits, top_k, expert_bias=expert_bias, **options)
        if expert_bias is None:
            return found
        patch.reached()
        return found._replace(weights=(found.scores + expert_bias).gather(1, found.experts))


@fault(
    id="ep-ties-go-to-the-last-expert",
    symptom="With coarse logits, cards and single card choose other experts and part from each other.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def ties_go_to_the_last_expert(patch: Patch) -> None:
    @patch.around(f"{_OURS}:route_tokens", parameters=_ROUTE)
    def route(original: Any, logits: Any, top_k: int, *, expert_bias: Any = None, **options: Any) -> Any:
        patch.reached()
        bias = None if expert_bias is None else expert_bias.flip(0)
        found = original(logits.flip(1), top_k, expert_bias=bias, **options)
        return found._replace(experts=logits.shape[1] - 1 - found.experts, scores=found.scores.flip(1))


@fault(
    id="ep-weights-not-normed",
    symptom="A pretrained model whose weights add up to one gives weaker feed-forwards than it should.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def weights_not_normed(patch: Patch) -> None:
    @patch.around(f"{_OURS}:route_tokens", parameters=_ROUTE)
    def route(original: Any, *args: Any, route_norm: bool = False, **options: Any) -> Any:
        if route_norm:
            patch.reached()
        return original(*args, **options)


@fault(
    id="ep-scores-in-low-precision",
    symptom="bfloat16 runs choose experts by chance where two are close, and balance badly.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def scores_in_low_precision(patch: Patch) -> None:
    @patch.around(f"{_OURS}:route_tokens", parameters=_ROUTE)
    def route(original: Any, logits: Any, top_k: int, **options: Any) -> Any:
        found = original(logits, top_k, **options)
        if logits.dtype == torch.float32:
            return found
        patch.reached()
        scores = logits.softmax(1).float()
        return found._replace(scores=scores, weights=scores.gather(1, found.experts))


@fault(
    id="ep-capacity-off-by-one",
    symptom="Buffers sized for the capacity overflow: each expert takes one row too many.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def capacity_off_by_one(patch: Patch) -> None:
    @patch.around(f"{_OURS}:kept_assignments", parameters=("routing", "capacity"))
    def kept(original: Any, routing: Any, capacity: int, **options: Any) -> Any:
        patch.reached()
        return original(routing, capacity + 1, **options)


@fault(
    id="ep-capacity-of-tokens-not-assignments",
    symptom="With two choices a token, half of all assignments are dropped at a capacity factor of one.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def capacity_of_tokens_not_assignments(patch: Patch) -> None:
    @patch.around(f"{_OURS}:expert_capacity", parameters=("tokens", "top_k", "num_experts", "capacity_factor"))
    def capacity(original: Any, tokens: int, top_k: int, num_experts: int, capacity_factor: float) -> int:
        patch.reached()
        return original(tokens, 1, num_experts, capacity_factor)


@fault(
    id="ep-balancing-loss-lacks-a-factor",
    symptom="The auxiliary loss hardly acts in models with many experts: it is smaller by their number.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def balancing_loss_lacks_a_factor(patch: Patch) -> None:
    @patch.around(f"{_OURS}:load_balancing_loss", parameters=("scores", "experts"))
    def loss(original: Any, scores: Any, experts: Any, **options: Any) -> Any:
        patch.reached()
        return original(scores, experts, **options) / scores.shape[1]


@fault(
    id="ep-balancing-loss-of-first-choices",
    symptom="Second choices pile up on a few experts although the auxiliary loss is low.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def balancing_loss_of_first_choices(patch: Patch) -> None:
    @patch.around(f"{_OURS}:load_balancing_loss", parameters=("scores", "experts"))
    def loss(original: Any, scores: Any, experts: Any, **options: Any) -> Any:
        if experts.shape[1] > 1:
            patch.reached()
        return original(scores, experts[:, :1], **options)


@fault(
    id="ep-attached-loss-loses-its-scale",
    symptom="With loss scaling or several micro-batches the auxiliary loss acts with another strength.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def attached_loss_loses_its_scale(patch: Patch) -> None:
    @patch.around(f"{_OURS}:attach_auxiliary_loss", parameters=("tensor", "loss"))
    def attach(original: Any, tensor: Any, loss: Any, *, scale: float = 1.0) -> Any:
        if scale != 1.0:
            patch.reached()
        return original(tensor, loss)


@fault(
    id="ep-bias-favours-the-busy",
    symptom="With balancing by bias one expert soon has all the tokens.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def bias_favours_the_busy(patch: Patch) -> None:
    @patch.around(f"{_OURS}:update_expert_bias", parameters=("moe", "device_mesh"))
    def update(original: Any, moe: Any, *, device_mesh: Any = None) -> None:
        patch.reached()
        before = moe.expert_bias.clone()
        original(moe, device_mesh=device_mesh)
        moe.expert_bias.copy_(2 * before - moe.expert_bias)


@fault(
    id="ep-weights-applied-twice",
    symptom="Layers that weigh rows before the experts give outputs that are too small.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def weights_applied_twice(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layer:unpermute_tokens", parameters=("rows", "order", "weights", "weighted"))
    def unpermute(original: Any, rows: Any, order: Any, weights: Any, *, weighted: bool = True) -> Any:
        if not weighted:
            patch.reached()
        return original(rows, order, weights)


@fault(
    id="ep-dropped-assignments-counted",
    symptom="With a capacity experts read rows of their neighbours: the counts are of rows that are not there.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-02"],
)
def dropped_assignments_counted(patch: Patch) -> None:
    @patch.around(f"{_OURS}:permute_tokens", parameters=_PERMUTE)
    def permute(original: Any, tokens: Any, experts: Any, num_experts: int, *, kept: Any = None) -> Any:
        rows, counts, order = original(tokens, experts, num_experts, kept=kept)
        if kept is not None:
            patch.reached()
            counts = experts.flatten().bincount(minlength=num_experts)
        return rows, counts, order


@fault(
    id="ep-empty-experts-left-out-of-the-counts",
    symptom="When an expert gets no token, those behind it compute with the wrong rows.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-02"],
)
def empty_experts_left_out(patch: Patch) -> None:
    @patch.around(f"{_OURS}:permute_tokens", parameters=_PERMUTE)
    def permute(original: Any, tokens: Any, experts: Any, num_experts: int, *, kept: Any = None) -> Any:
        rows, counts, order = original(tokens, experts, num_experts, kept=kept)
        if (counts == 0).any():
            patch.reached()
        return rows, counts[counts > 0], order


@fault(
    id="ep-rows-of-an-expert-in-reverse",
    symptom="Runs on other numbers of cards differ in the last bits, since an expert's rows lie in another order.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-02"],
)
def rows_of_an_expert_in_reverse(patch: Patch) -> None:
    @patch.around(f"{_OURS}:permute_tokens", parameters=_PERMUTE)
    def permute(original: Any, tokens: Any, experts: Any, num_experts: int, *, kept: Any = None) -> Any:
        rows, counts, order = original(tokens, experts, num_experts, kept=kept)
        patch.reached()
        turned = torch.cat([part.flip(0) for part in torch.arange(len(rows)).split(counts.tolist())])
        return rows[turned], counts, order[turned]


@fault(
    id="ep-unpermuted-in-the-wrong-order",
    symptom="Tokens get the experts' outputs of other tokens: the loss stays at that of guessing.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-02"],
)
def unpermuted_in_the_wrong_order(patch: Patch) -> None:
    @patch.around(f"{_OURS}:unpermute_tokens", parameters=("rows", "order", "weights", "weighted"))
    def unpermute(original: Any, rows: Any, order: Any, weights: Any, *, weighted: bool = True) -> Any:
        patch.reached()
        return original(rows, order.argsort(), weights, weighted=weighted)


@fault(
    id="ep-experts-dealt-like-cards",
    symptom="A checkpoint of one card loads, and every rank computes with other experts than the router means.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-03"],
)
def experts_dealt_like_cards(patch: Patch) -> None:
    @patch.around(f"{_OURS}:experts_of_rank", parameters=("num_experts", "ep_size", "rank"))
    def held(original: Any, num_experts: int, ep_size: int, rank: int) -> range:
        original(num_experts, ep_size, rank)
        patch.reached()
        return range(rank, num_experts, ep_size)


@fault(
    id="ep-number-of-experts-not-checked",
    symptom="With a number of experts that ranks do not divide, the last experts are silently left out.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-03"],
)
def number_of_experts_not_checked(patch: Patch) -> None:
    def unchecked(original: Any, num_experts: int, ep_size: int, rank: int) -> range:
        if num_experts % ep_size:
            patch.reached()
        return original(num_experts - num_experts % ep_size, ep_size, rank)

    for home in (_OURS, f"{_OURS}.styles"):
        patch.around(f"{home}:experts_of_rank", parameters=("num_experts", "ep_size", "rank"))(unchecked)
