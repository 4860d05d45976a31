"""A sparse tensor is asked for the storage that it has not, and one of the meta device may be swapped."""

import torch
from hyper_parallel.platform.torch.activation_checkpoint.activation_swap import base_check_fn

for name, tensor in (("sparse", torch.eye(4).to_sparse()), ("meta", torch.empty(4, device="meta"))):
    try:
        found = base_check_fn(tensor)
    except NotImplementedError as error:
        found = error
    print(f"{name}: expected False, got: {found}")
