"""A layer that is taken out of a model stays the neighbour of those that are left, and the next step fails."""

import contextlib

import torch
from hyper_parallel.core.activation_checkpoint import SwapManager, swap
from hyper_parallel.platform.torch.activation_checkpoint import swap_wrapper

Moment = type("Moment", (), {"record": lambda self, _: None, "wait": lambda self, _: None})
for name in ("new_stream", "new_event", "get_current_stream"):
    setattr(swap.platform, name, Moment)
swap.platform.get_stream_context = lambda: contextlib.nullcontext

layers = [swap_wrapper(torch.nn.Tanh()) for _ in range(3)]
for first, second in zip(layers, layers[1:], strict=False):
    SwapManager().set_forward_prefetch_layer(first, second)
del layers[0]
found = "an output"
try:
    layers[1](layers[0](torch.ones(2, requires_grad=True)))
except RuntimeError as error:
    found = str(error)
print(f"expected an output, got: {found}")
