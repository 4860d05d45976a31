"""After an exception in a pass the library goes on, without an error, with the parameters of then."""

import contextlib
import tempfile

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    for register in (nn.Module.register_forward_pre_hook, nn.Module.register_full_backward_hook):
        layer = fully_shard(nn.Linear(2, 2, bias=False), mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
        shard, inputs = layer.weight, torch.ones(1, 2, requires_grad=True)
        hook = register(layer, lambda *_: 1 / 0)
        with contextlib.suppress(ZeroDivisionError):
            layer(inputs).sum().backward()
        hook.remove()
        shard.detach().to_local().fill_(3)
        print(f"{register.__name__}: expected 12, got {layer(inputs).sum().item()}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
