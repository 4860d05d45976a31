"""Faults that show only where layers of experts run again in a recomputed region, on torch_native."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.expert_parallel"


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


@fault(
    id="ix-recomputation-counts-again",
    symptom="With recomputation the counts of each expert's tokens are twice what was routed.",
    capability="expert_parallel",
    layer="l3",
    must_fail=["IX-19"],
    ranks="all",
)
def recomputation_counts_again(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layer:in_recomputation")
    def in_recomputation(original: Any) -> bool:
        if original():
            patch.reached()
        return False


@fault(
    id="ix-recomputation-routes-otherwise",
    symptom="With recomputation the loss is right, and gradients are those of other experts than had the tokens.",
    capability="expert_parallel",
    layer="l3",
    must_fail=["IX-19"],
    ranks="all",
)
def recomputation_routes_otherwise(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layer:route_tokens", parameters=("logits", "top_k"))
    def route(original: Any, *args: Any, **options: Any) -> Any:
        found = original(*args, **options)
        if not _in_backward():
            return found
        patch.reached()
        # As many rows an expert as before, so that nothing but the values is wrong. A region that keeps results refuses
        # operators that were not in its first run.
        with _disable_current_modes():
            return found._replace(experts=found.experts.roll(1, 0))


@fault(
    id="ix-recomputation-balances-again",
    symptom="With recomputation the balancing loss weighs twice in the gradients, whatever its coefficient.",
    capability="expert_parallel",
    layer="l3",
    must_fail=["IX-19"],
    ranks="all",
)
def recomputation_balances_again(patch: Patch) -> None:
    @patch.around(f"{_OURS}.losses:_Attached.forward", parameters=("ctx", "tensor", "loss", "scale"))
    def forward(original: Any, ctx: Any, tensor: Any, loss: Any, scale: float) -> Any:
        if not _in_backward():
            return original(ctx, tensor, loss, scale)
        patch.reached()
        return original(ctx, tensor, loss, 2 * scale)
