"""An argument that is not a tensor, such as a number or a tuple of tensors, cannot be an input of a pipeline."""

import hyper_parallel
import torch

split = hyper_parallel.get_platform().micro_batch(2)
refused = []
for argument in (7, None, (torch.zeros(4, 3), torch.zeros(4))):
    try:
        split((torch.zeros(4, 3), argument), {})
    except AttributeError as error:
        refused.append(f"{type(argument).__name__}: {error}")

print(*refused, sep="\n")
assert not refused
