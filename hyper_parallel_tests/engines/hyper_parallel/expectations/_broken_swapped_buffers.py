"""Swap takes the module's buffers and what is detached from its parameters, and so empties memory that is in use."""

import torch
from hyper_parallel.platform.torch.activation_checkpoint import ActivationPolicy, swap_wrapper


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("table", torch.ones(4))

    def forward(self, inputs):
        return inputs * self.weight.detach() * self.table


asked = []
model = Scale()
swap_wrapper(model, lambda one: asked.append(one.data_ptr()) or ActivationPolicy.SWAP)(
    torch.ones(4, requires_grad=True)
)
for name in ("weight", "table"):
    print(f"expected that {name} stays, got: {'swapped' if getattr(model, name).data_ptr() in asked else 'stays'}")
