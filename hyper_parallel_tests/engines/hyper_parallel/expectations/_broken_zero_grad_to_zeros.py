"""zero_grad(set_to_none=False) fails on reduced gradients."""

import tempfile

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    layer = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    layer(torch.ones(2, 4)).sum().backward()
    try:
        layer.zero_grad(set_to_none=False)
    except RuntimeError as error:
        print(f"rank {rank}: expected zeros, got {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
