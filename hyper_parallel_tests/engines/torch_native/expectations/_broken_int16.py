"""gloo gathers no int16, and its error does not say so."""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh, full = init_device_mesh("cpu", (2,)), torch.arange(4, dtype=torch.int16)
    try:
        print(distribute_tensor(full, mesh, [Shard(0)], src_data_rank=None).full_tensor())
    except RuntimeError as error:
        print(f"rank {rank}: expected [0, 1, 2, 3], got RuntimeError: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
