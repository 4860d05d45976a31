"""A wait for a group's load that was not launched, e.g. where backward begins in the middle, is an AttributeError."""

import contextlib

import torch
from hyper_parallel.core.activation_checkpoint import SwapManager, swap
from hyper_parallel.platform.torch.activation_checkpoint import swap_wrapper

swap.platform.get_current_stream = lambda: None
swap.platform.get_stream_context = lambda: contextlib.nullcontext

SwapManager().set_current_group_name("group")
output = swap_wrapper(torch.nn.Tanh())(torch.ones(2, requires_grad=True))
found = "loaded"
try:
    SwapManager().wait_load("group")
except AttributeError as error:
    found = repr(error)
print(f"expected loaded, got: {found}")
