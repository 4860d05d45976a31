"""What the cases expect, computed one token after the other and without any engine."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def scores_of(logits: list[float], score_func: str) -> list[float]:
    """A token's scores."""
    if score_func == "sigmoid":
        return [1 / (1 + math.exp(-one)) for one in logits]
    powers = [math.exp(one - max(logits)) for one in logits]
    return [one / sum(powers) for one in powers]


def best(values: list[float], top_k: int) -> list[int]:
    """The places of the largest, best first; of equal ones the first, since sorting keeps their order."""
    return sorted(range(len(values)), key=lambda place: -values[place])[:top_k]


def kept(experts: Tensor, preferred: list[int], capacity: int) -> Tensor:
    """Which assignments fit if they come in this order, (tokens, top_k)."""
    flat, taken, fits = experts.flatten().tolist(), {}, torch.zeros(experts.numel(), dtype=torch.bool)
    for assignment in preferred:
        taken[flat[assignment]] = taken.get(flat[assignment], 0) + 1
        fits[assignment] = taken[flat[assignment]] <= capacity
    return fits.view_as(experts)


def balancing(scores: Tensor, experts: Tensor) -> float:
    """Experts times the sum over them of their share of the assignments times their mean score."""
    tokens, number = scores.shape
    total = 0.0
    for expert in range(number):
        share = int((experts == expert).sum()) / experts.numel()
        total += share * sum(float(row[expert] / row.sum()) for row in scores) / tokens
    return number * total


def order_of(experts: Tensor, kept: Tensor | None = None) -> list[int]:
    """The kept assignments, sorted by expert and then by number."""
    flat = experts.flatten().tolist()
    fits = [True] * len(flat) if kept is None else kept.flatten().tolist()
    return sorted((one for one in range(len(flat)) if fits[one]), key=lambda one: flat[one])
