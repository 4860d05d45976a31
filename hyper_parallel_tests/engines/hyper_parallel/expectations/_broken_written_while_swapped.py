"""A saved tensor that is written to before it is swapped gives other gradients, where autograd refuses it."""

import torch
from hyper_parallel.platform.torch.activation_checkpoint import swap_wrapper


class Exponential(torch.nn.Module):
    def forward(self, inputs):
        self.kept = inputs.exp()
        return self.kept * 2


for wrap in (lambda module: module, swap_wrapper):
    module, inputs = Exponential(), torch.ones(2, requires_grad=True)
    output = wrap(module)(inputs)
    with torch.no_grad():
        module.kept.zero_()
    found = "no error"
    try:
        output.sum().backward()
    except RuntimeError as error:
        found = str(error)
    print(f"expected 'modified by an inplace operation', got: {found[:90]}, gradient {inputs.grad}")
