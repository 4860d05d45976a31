"""A layer that saves nothing, as in an evaluation before the first step, has no group, and its hook fails."""

import torch
from hyper_parallel.core.activation_checkpoint import SwapManager
from hyper_parallel.platform.torch.activation_checkpoint import swap_wrapper

layers = [swap_wrapper(torch.nn.Tanh()) for _ in range(2)]
SwapManager().set_forward_prefetch_layer(*layers)
found = "an output"
try:
    with torch.no_grad():
        layers[1](layers[0](torch.ones(2)))
except RuntimeError as error:
    found = str(error)
print(f"expected an output, got: {found}")
