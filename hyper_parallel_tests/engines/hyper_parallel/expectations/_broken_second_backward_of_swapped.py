"""A retained graph has no second backward: what was unpacked once is gone."""

import torch
from hyper_parallel.platform.torch.activation_checkpoint import swap_wrapper

inputs = torch.ones(2, requires_grad=True)
output = swap_wrapper(torch.nn.Tanh())(inputs)
output.sum().backward(retain_graph=True)
found = "another backward"
try:
    output.sum().backward()
except (AttributeError, IndexError) as error:
    found = repr(error)
print(f"expected another backward, got: {found}")
