"""What was saved is never freed if the graph is dropped, or backward fails: saved tensors hold their own graph."""

import gc

import torch
from hyper_parallel.platform.torch.activation_checkpoint import swap_wrapper
from torch.multiprocessing.reductions import StorageWeakRef


def freed(wrap):
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Tanh())
    seen = []
    module[1].register_forward_hook(lambda _, __, output: seen.append(StorageWeakRef(output.untyped_storage())))
    wrap(module)(torch.ones(1, 2, requires_grad=True))
    gc.collect()
    return seen[0].expired()


for wrap in (lambda module: module, swap_wrapper):
    print(f"expected freed, got: {'freed' if freed(wrap) else 'held'}")
