"""Arguments that cannot be meant are taken, and fail later if at all."""

import torch
from hyper_parallel.core.activation_checkpoint import SwapManager
from hyper_parallel.platform.torch.activation_checkpoint import swap_wrapper

layer = torch.nn.Tanh()
for name, call in {
    "a function for a module": lambda: swap_wrapper(torch.exp),
    "a string for a policy": lambda: swap_wrapper(layer, "SWAP"),
    "None for a group's name": lambda: SwapManager().set_current_group_name(None),
    "a layer before itself": lambda: SwapManager().set_forward_prefetch_layer(layer, layer),
    "None for a layer": lambda: SwapManager().set_forward_prefetch_layer(layer, None),
}.items():
    found = "no error"
    try:
        call()
    except (AttributeError, TypeError, ValueError) as error:
        found = f"{type(error).__name__}: {error}"
    print(f"{name}: expected TypeError or ValueError, got {found}")
