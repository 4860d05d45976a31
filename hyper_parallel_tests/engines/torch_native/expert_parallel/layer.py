"""A layer of experts: router, experts, and an expert that sees every token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from hyper_parallel_tests.engines.torch_native.expert_parallel.experts import GroupedExperts
from hyper_parallel_tests.engines.torch_native.expert_parallel.losses import summed
from hyper_parallel_tests.engines.torch_native.expert_parallel.permutation import permute_tokens, unpermute_tokens
from hyper_parallel_tests.engines.torch_native.expert_parallel.routing import (
    Routing,
    expert_capacity,
    kept_assignments,
    route_tokens,
)

__all__ = ["MoE", "TokenChoiceTopKRouter", "update_expert_bias"]


class TokenChoiceTopKRouter(nn.Module):
    """See the port."""

    def __init__(
        self,
        dim: int,
        num_experts: int,
        top_k: int,
        *,
        score_func: str = "softmax",
        route_norm: bool = False,
        route_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, num_experts, bias=False)
        self.top_k = top_k
        self.options = {"score_func": score_func, "route_norm": route_norm, "route_scale": route_scale}
        self.logits: Tensor | None = None

    def forward(self, tokens: Tensor, expert_bias: Tensor | None = None) -> Routing:
        self.logits = self.gate(tokens)
        return route_tokens(self.logits, self.top_k, expert_bias=expert_bias, **self.options)


class SharedExpert(nn.Module):
    """SwiGLU that every token passes; (tokens, dim) in and out."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden_dim, bias=False)
        self.up = nn.Linear(dim, hidden_dim, bias=False)
        self.down = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(tokens)) * self.up(tokens))


class MoE(nn.Module):
    """See the port."""

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        num_experts: int,
        top_k: int,
        score_before_experts: bool = False,
        load_balance_coeff: float | None = None,
        use_grouped_mm: bool = False,
        *,
        score_func: str = "softmax",
        route_norm: bool = False,
        route_scale: float = 1.0,
        shared_hidden_dim: int = 0,
        capacity_factor: float | None = None,
        drop_policy: str = "position",
    ) -> None:
        super().__init__()
        self.router = TokenChoiceTopKRouter(
            dim, num_experts, top_k, score_func=score_func, route_norm=route_norm, route_scale=route_scale
        )
        self.experts = GroupedExperts(dim, hidden_dim, num_experts, use_grouped_mm)
        self.shared = SharedExpert(dim, shared_hidden_dim) if shared_hidden_dim else None
        self.num_experts, self.top_k = num_experts, top_k
        self.score_before_experts = score_before_experts
        self.capacity_factor, self.drop_policy = capacity_factor, drop_policy
        self.load_balance_coeff = load_balance_coeff
        balanced = load_balance_coeff is not None
        self.register_buffer("expert_bias", torch.zeros(num_experts) if balanced else None)
        self.register_buffer("tokens_per_expert", torch.zeros(num_experts) if balanced else None)
        self.routing: Routing | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.flatten(0, -2)
        routing = self.routing = self.router(tokens, self.expert_bias)
        if self.training and self.tokens_per_expert is not None and not in_recomputation():
            self.tokens_per_expert += routing.experts.flatten().bincount(minlength=self.num_experts)
        rows, counts, order = permute_tokens(tokens, routing.experts, self.num_experts, kept=self._kept(routing))
        if self.score_before_experts:
            rows = (rows * routing.weights.flatten()[order].unsqueeze(1)).to(rows.dtype)
        rows = self.experts(rows, counts)
        # Before the rows are read: they may still be on their way back.
        shared = None if self.shared is None else self.shared(tokens)
        output = unpermute_tokens(rows, order, routing.weights, weighted=not self.score_before_experts)
        return (output if shared is None else output + shared).view_as(hidden)

    def _kept(self, routing: Routing) -> Tensor | None:
        if self.capacity_factor is None:
            return None
        capacity = expert_capacity(len(routing.experts), self.top_k, self.num_experts, self.capacity_factor)
        return kept_assignments(routing, capacity, drop_policy=self.drop_policy)


def in_recomputation() -> bool:
    """Whether this runs inside backward, where a region of activation checkpointing runs once more."""
    return torch._C._current_graph_task_id() != -1


@torch.no_grad()
def update_expert_bias(moe: MoE, *, device_mesh: DeviceMesh | None = None) -> None:
    """See the port."""
    if moe.load_balance_coeff is None:
        raise ValueError("the layer has no bias: expected one made with load_balance_coeff")
    counts = summed(moe.tokens_per_expert.clone(), device_mesh)
    moe.expert_bias += moe.load_balance_coeff * (counts.mean() - counts).sign()
    moe.tokens_per_expert.zero_()
