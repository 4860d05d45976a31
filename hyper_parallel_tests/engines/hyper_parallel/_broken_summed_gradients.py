"""Gradients are summed over the ranks, not averaged, and nothing is there to choose."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.fully_shard.api import fully_shard
from hyper_parallel.platform.torch.fully_shard.utils import MixedPrecisionPolicy, OffloadPolicy
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    except TypeError:
        mesh = init_device_mesh((2,), ("dp",))
    layer = fully_shard(nn.Linear(4, 4), mesh=mesh, mp_policy=MixedPrecisionPolicy(), offload_policy=OffloadPolicy())
    layer(torch.ones(1, 4)).sum().backward()
    print(f"rank {rank}: expected 1.0 in every element, got {layer.bias.grad.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
