"""What the cases expect, computed without any engine."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call


def part(full: torch.Tensor, *, dim: int | None, index: int, count: int) -> torch.Tensor:
    """The part of ``full`` that rank ``index`` of ``count`` holds when ``dim`` is divided (None: all of it).

    Parts have ceil(size / count) rows each, the last ones fewer or none: torch.chunk's rule, spelled out.
    """
    if dim is None:
        return full.detach()
    size = full.shape[dim]
    longest = -(-size // count)
    start = min(index * longest, size)
    return full.detach().narrow(dim, start, min(longest, size - start))


def cast_forward(model: nn.Module, inputs: Tensor, param_dtype: torch.dtype, output_dtype: torch.dtype) -> Tensor:
    """The output of a model whose parameters and inputs are cast to ``param_dtype`` and outputs to another dtype.

    Backward casts the gradients back to the dtype that the parameters are stored in.
    """
    parameters = {name: parameter.to(param_dtype) for name, parameter in model.named_parameters()}
    return functional_call(model, parameters, inputs.to(param_dtype)).to(output_dtype)
