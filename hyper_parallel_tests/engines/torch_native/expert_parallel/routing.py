"""Which experts a token goes to, and which of these assignments fit."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Routing", "expert_capacity", "kept_assignments", "route_tokens"]

LEAST_SUM = 1e-20
"""What scores are divided by at least: sigmoids of a token may all be zero in floating point."""


class Routing(NamedTuple):
    """See the port."""

    weights: Tensor
    experts: Tensor
    scores: Tensor


def route_tokens(
    logits: Tensor,
    top_k: int,
    *,
    score_func: str = "softmax",
    route_norm: bool = False,
    route_scale: float = 1.0,
    expert_bias: Tensor | None = None,
) -> Routing:
    """See the port.

    With s the scores and b the bias: experts = top k of s + b, weights = scale * s / (sum of the chosen s, or 1).
    Sorting is stable, and descending, so that ties go to the lower number. Sources: Shazeer et al., "Outrageously Large
    Neural Networks", 2017 (softmax); DeepSeek-AI, "DeepSeek-V3", 2024, (12) to (16) (sigmoid, normalised, bias).
    """
    if not 1 <= top_k <= logits.shape[-1]:
        raise ValueError(f"top_k={top_k} of {logits.shape[-1]} experts: choose between 1 and their number")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if score_func == "softmax":
        scores = logits.softmax(-1)
    elif score_func == "sigmoid":
        scores = logits.sigmoid()
    else:
        raise ValueError(f"unknown score function {score_func!r}: expected softmax or sigmoid")
    if expert_bias is not None and expert_bias.shape != logits.shape[-1:]:
        raise ValueError(
            f"a bias of shape {list(expert_bias.shape)}: expected one number for each of {logits.shape[-1]}"
        )
    ranked = scores.detach() if expert_bias is None else scores.detach() + expert_bias
    experts = ranked.argsort(dim=-1, descending=True, stable=True)[:, :top_k]
    weights = scores.gather(-1, experts)
    if route_norm:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=LEAST_SUM)
    return Routing(weights * route_scale, experts, scores)


def expert_capacity(tokens: int, top_k: int, num_experts: int, capacity_factor: float) -> int:
    """See the port. Source: Fedus et al., "Switch Transformers", 2021, (3)."""
    if capacity_factor <= 0:
        raise ValueError(f"a capacity factor of {capacity_factor}: expected a positive number, 1 for an even share")
    return math.ceil(tokens * top_k * capacity_factor / num_experts)


def kept_assignments(routing: Routing, capacity: int, *, drop_policy: str = "position") -> Tensor:
    """See the port."""
    if capacity < 0:
        raise ValueError(f"a capacity of {capacity}: expected a number of assignments, 0 or more")
    experts = routing.experts.flatten()
    if drop_policy == "position":
        preferred = torch.arange(len(experts), device=experts.device)
    elif drop_policy == "probs":
        preferred = routing.weights.detach().flatten().argsort(descending=True, stable=True)
    else:
        raise ValueError(f"unknown drop policy {drop_policy!r}: expected position or probs")
    order = preferred[experts[preferred].argsort(stable=True)]
    counts = experts.bincount()
    # How many assignments of the same expert come before each one.
    before = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[experts[order]]
    kept = torch.zeros_like(experts, dtype=torch.bool)
    kept[order] = before < capacity
    return kept.view_as(routing.experts)
