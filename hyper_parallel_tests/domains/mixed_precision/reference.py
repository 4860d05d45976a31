"""What the cases expect, computed on one card and without any engine."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from hyper_parallel_tests.models.seeding import Batch


def forward_under_policy(
    model: nn.Module, inputs: Tensor, param_dtype: torch.dtype | None, output_dtype: torch.dtype | None
) -> Tensor:
    """Outputs of a model under a policy of these fields, each of which may be None as in a policy: no cast.

    `param_dtype` is that of parameters and inputs; without it both stay as they come.
    Backward yields gradients in the dtype that the parameters are stored in.
    """
    parameters = dict(model.named_parameters())
    if param_dtype is not None:
        parameters = {name: one.to(param_dtype) for name, one in parameters.items()}
        inputs = inputs.to(param_dtype)
    outputs = functional_call(model, parameters, inputs)
    return outputs if output_dtype is None else outputs.to(output_dtype)


def loss(outputs: Tensor, batch: Batch) -> Tensor:
    """Squared error in fp32, whatever the outputs are."""
    return F.mse_loss(outputs.float(), batch.targets)


def mean_of_parts(
    model: nn.Module,
    batch: Batch,
    parts: int,
    param_dtype: torch.dtype | None = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """The mean of the losses of equal parts of a batch, each computed by itself: what is rounded is so on ranks."""
    losses = [
        loss(forward_under_policy(model, one.inputs, param_dtype, output_dtype), one)
        for one in (batch.part(part, parts) for part in range(parts))
    ]
    return torch.stack(losses).mean()
