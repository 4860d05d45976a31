"""Experts that compute side by side, each with its own rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GroupedExperts", "grouped_mm", "local"]

# What PyTorch's grouped GEMM asks of the rows of its matrices.
_ALIGNED_BYTES = 16
_GROUPED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def grouped_mm(rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """See the port. PyTorch's grouped GEMM where it takes the dtype and the widths, else ``each_mm``."""
    aligned = all(width * rows.element_size() % _ALIGNED_BYTES == 0 for width in weights.shape[1:])
    if rows.dtype not in _GROUPED_DTYPES or not aligned:
        return each_mm(rows, weights, counts)
    return F.grouped_mm(rows, weights, offs=counts.cumsum(0).to(torch.int32))


def each_mm(rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """``grouped_mm``, one expert after the other."""
    parts = rows.split(counts.tolist())
    return torch.cat([part @ matrix for part, matrix in zip(parts, weights, strict=True)])


def local(parameter: Tensor) -> Tensor:
    """This rank's part of a distributed parameter, or the parameter."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


class GroupedExperts(nn.Module):
    """See the port. Source of SwiGLU: Shazeer, "GLU Variants Improve Transformer", 2020."""

    def __init__(self, dim: int, hidden_dim: int, num_experts: int, use_grouped_mm: bool = False) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(num_experts, hidden_dim, dim))
        self.up = nn.Parameter(torch.empty(num_experts, hidden_dim, dim))
        self.down = nn.Parameter(torch.empty(num_experts, dim, hidden_dim))
        self.use_grouped_mm = use_grouped_mm
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        multiply = grouped_mm if self.use_grouped_mm else each_mm
        gate, up, down = (local(one).transpose(1, 2) for one in (self.gate, self.up, self.down))
        return multiply(F.silu(multiply(rows, gate, counts)) * multiply(rows, up, counts), down, counts)
