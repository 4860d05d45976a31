"""Backward through a gather fails in groups that do not hold global rank 0, on a mesh of 2 x 2 in half of them."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Replicate, Shard
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tensor = distribute_tensor(torch.ones(4, 4), mesh, [Replicate(), Shard(0)]).requires_grad_()
    try:
        tensor.redistribute(mesh, [Replicate(), Replicate()]).to_local().sum().backward()
        print(f"rank {rank}: gradient {tuple(tensor.grad.shape)}")
    except ValueError as error:
        print(f"rank {rank}: ValueError: {error}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=4)
