"""A layer whose backward failed counts as being in backward from then on, so that the next step fails."""

import contextlib

import torch
from hyper_parallel.core.activation_checkpoint import SwapManager, swap
from hyper_parallel.platform.torch.activation_checkpoint import swap_wrapper

Moment = type("Moment", (), {"record": lambda self, _: None, "wait": lambda self, _: None})
for name in ("new_stream", "new_event", "get_current_stream"):
    setattr(swap.platform, name, Moment)
swap.platform.get_stream_context = lambda: contextlib.nullcontext

layers = [swap_wrapper(torch.nn.Tanh()) for _ in range(2)]
SwapManager().set_forward_prefetch_layer(*layers)
handle = layers[0].register_full_backward_pre_hook(lambda *_: 1 / 0)
with contextlib.suppress(ZeroDivisionError):
    layers[1](layers[0](torch.ones(2, requires_grad=True))).sum().backward()
handle.remove()
found = "an output"
try:
    layers[1](layers[0](torch.ones(2, requires_grad=True)))
except AttributeError as error:
    found = repr(error)
print(f"expected an output, got: {found}")
