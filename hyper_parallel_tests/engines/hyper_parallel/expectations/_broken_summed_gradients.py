"""Gradients are summed over the ranks, not averaged, and nothing is there to choose."""

import tempfile

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    layer = fully_shard(nn.Linear(4, 4), mesh=mesh)
    layer(torch.ones(1, 4)).sum().backward()
    print(f"rank {rank}: expected 1.0 in every element, got {layer.bias.grad.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
