"""zero_grad leaves the gradients that wait for a reduction, and the next step adds them."""

import tempfile

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    layer = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    for synchronize in (False, True):
        layer.zero_grad()
        layer.set_requires_gradient_sync(synchronize)
        layer(torch.ones(1, 4)).sum().backward()
    print(f"rank {rank}: expected 1.0 in every element, got {layer.bias.grad}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
