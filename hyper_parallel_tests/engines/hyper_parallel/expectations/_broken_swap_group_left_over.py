"""Behind a layer, and behind one that failed, its group stays the current one: what follows is saved into it."""

import contextlib

import torch
from hyper_parallel.core.activation_checkpoint import SwapManager, swap
from hyper_parallel.platform.torch.activation_checkpoint import swap_wrapper


class Moment:
    def record(self, _):
        pass

    wait = record


for name in ("new_stream", "new_event", "get_current_stream"):
    setattr(swap.platform, name, Moment)
swap.platform.get_stream_context = lambda: contextlib.nullcontext

layers = [swap_wrapper(torch.nn.Tanh()) for _ in range(2)]
SwapManager().set_forward_prefetch_layer(*layers)
SwapManager().set_current_group_name("head")
layers[1](layers[0](torch.ones(2, requires_grad=True)))
print(f"expected head, got: {SwapManager().get_current_group_name()}")
