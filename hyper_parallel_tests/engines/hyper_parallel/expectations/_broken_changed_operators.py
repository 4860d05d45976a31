"""A selective region that calls other operators when it runs again: not noticed, or called a second backward."""

import torch
from hyper_parallel.core.activation_checkpoint import checkpoint

LISTED = [torch.ops.aten.sin.default, torch.ops.aten.cos.default]


def changing(first, then):
    runs = []

    def region(inputs):
        runs.append(1)
        return (first if len(runs) == 1 else then)(inputs)

    return region


for operator, then in (("tan", lambda x: x.sin().tan().exp()), ("cos", lambda x: x.sin().cos().cos())):
    inputs = torch.ones(4, requires_grad=True)
    region = changing(lambda x: x.sin().cos().exp(), then)
    output = checkpoint(region, inputs, policy_fn=LISTED, early_stop=False)
    found = "no error"
    try:
        output.sum().backward()
    except RuntimeError as error:
        found = str(error)
    print(f"expected an error that names {operator}, got: {found}")
