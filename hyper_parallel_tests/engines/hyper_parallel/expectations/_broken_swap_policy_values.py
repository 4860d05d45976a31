"""Whatever a swap policy gives that is not SAVE means swap, also None, which a policy without a return gives."""

import torch
from hyper_parallel.platform.torch.activation_checkpoint import swap_wrapper

for answer in (None, True, "SAVE"):
    found = "no error"
    try:
        swap_wrapper(torch.nn.Tanh(), lambda _, answer=answer: answer)(torch.ones(2, requires_grad=True))
    except (TypeError, ValueError) as error:
        found = str(error)
    print(f"expected an error that names {answer!r}, got: {found}")
