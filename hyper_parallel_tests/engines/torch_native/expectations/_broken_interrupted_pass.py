"""FSDP2 goes on after an exception in a pass, without an error: with old parameters, and without gradients."""

import contextlib
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    for register in (nn.Module.register_forward_pre_hook, nn.Module.register_full_backward_hook):
        layer = fully_shard(nn.Linear(2, 2, bias=False))
        shard, inputs = layer.weight, torch.ones(1, 2, requires_grad=True)
        hook = register(layer, lambda *_: 1 / 0)
        with contextlib.suppress(ZeroDivisionError):
            layer(inputs).sum().backward()
        hook.remove()
        shard.detach().to_local().fill_(3)
        (output := layer(inputs).sum()).backward()
        print(f"{register.__name__}: expected 12 and a gradient, got {output.item()} and {shard.grad}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
