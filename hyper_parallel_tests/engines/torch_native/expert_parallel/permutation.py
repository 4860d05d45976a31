"""Tokens in the order of their experts, and back."""

from __future__ import annotations

from torch import Tensor

__all__ = ["permute_tokens", "unpermute_tokens"]


def permute_tokens(
    tokens: Tensor, experts: Tensor, num_experts: int, *, kept: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """See the port."""
    chosen = experts.flatten()
    order = chosen.argsort(stable=True)
    if kept is not None:
        order = order[kept.flatten()[order]]
    counts = chosen[order].bincount(minlength=num_experts)
    if len(counts) > num_experts:
        raise ValueError(f"expert {len(counts) - 1} of {num_experts}: expected numbers from 0 to {num_experts - 1}")
    return tokens.index_select(0, order // experts.shape[1]), counts, order


def unpermute_tokens(rows: Tensor, order: Tensor, weights: Tensor, *, weighted: bool = True) -> Tensor:
    """See the port. A token's rows are summed in the order of its experts' numbers, in the wider of both dtypes."""
    values = rows * weights.flatten()[order].unsqueeze(1) if weighted else rows
    summed = values.new_zeros(len(weights), rows.shape[1]).index_add(0, order // weights.shape[1], values)
    return summed.to(rows.dtype)
