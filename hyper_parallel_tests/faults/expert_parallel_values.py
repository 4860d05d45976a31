"""Faults of expert parallelism on torch_native: values of layers whose experts are on several ranks."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.expert_parallel"


@fault(
    id="ep-shared-expert-twice",
    symptom="Models with a shared expert have too large outputs with expert parallelism.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-01"],
    ranks="all",
)
def shared_expert_twice(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layer:SharedExpert.forward", parameters=("self", "tokens"))
    def forward(original: Any, self: Any, tokens: Any) -> Any:
        patch.reached()
        return 2 * original(self, tokens)


@fault(
    id="ep-single-weight-is-one",
    symptom="With one expert a token the router does not learn from the loss: its weight is always one.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-01"],
    ranks="all",
)
def single_weight_is_one(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layer:route_tokens", parameters=("logits", "top_k"))
    def route(original: Any, logits: Any, top_k: int, **options: Any) -> Any:
        found = original(logits, top_k, **options)
        if top_k > 1:
            return found
        patch.reached()
        return found._replace(weights=torch.ones_like(found.weights))


@fault(
    id="ep-balance-of-own-tokens",
    symptom="The auxiliary loss grows with the number of ranks, and balances each rank's tokens by themselves.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-01"],
    ranks="all",
)
def balance_of_own_tokens(patch: Patch) -> None:
    @patch.around(f"{_OURS}.losses:summed", parameters=("counts", "device_mesh"))
    def summed(original: Any, counts: Any, device_mesh: Any) -> Any:
        patch.reached()
        return counts


@fault(
    id="ep-bias-of-own-tokens",
    symptom="The balancing bias differs between ranks, which then choose other experts for the same token.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-01"],
)
def bias_of_own_tokens(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layer:summed", parameters=("counts", "device_mesh"))
    def summed(original: Any, counts: Any, device_mesh: Any) -> Any:
        patch.reached()
        return counts


@fault(
    id="ep-nothing-is-dropped",
    symptom="A capacity has no effect: memory grows with the busiest expert's rows.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-01"],
)
def nothing_is_dropped(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layer:MoE._kept", parameters=("self", "routing"))
    def kept(original: Any, self: Any, routing: Any) -> None:
        if self.capacity_factor is not None:
            patch.reached()


@fault(
    id="ep-parts-of-the-width-not-summed",
    symptom="With tensor parallelism in the experts each rank goes on with a part of the sum.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-03"],
    ranks="all",
)
def parts_of_the_width_not_summed(patch: Patch) -> None:
    @patch.around(f"{_OURS}.styles:_SumOfParts.forward", parameters=("ctx", "rows", "group"))
    def forward(original: Any, ctx: Any, rows: Any, group: Any) -> Any:
        patch.reached()
        return rows.clone()


@fault(
    id="ep-gradients-of-parts-not-summed",
    symptom="With tensor parallelism in the experts the loss is right and everything below them learns from a part.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-03"],
    ranks="all",
)
def gradients_of_parts_not_summed(patch: Patch) -> None:
    @patch.around(f"{_OURS}.styles:_CopyToParts.backward", parameters=("ctx", "grad"))
    def backward(original: Any, ctx: Any, grad: Any) -> Any:
        patch.reached()
        return grad, None
