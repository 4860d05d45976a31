"""gloo gathers no int16, and its error does not say so."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Shard
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh, full = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), torch.arange(4, dtype=torch.int16)
    try:
        print(distribute_tensor(full, mesh, [Shard(0)]).full_tensor())
    except RuntimeError as error:
        print(f"rank {rank}: expected [0, 1, 2, 3], got RuntimeError: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
