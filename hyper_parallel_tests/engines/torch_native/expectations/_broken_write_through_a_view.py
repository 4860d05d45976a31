"""Writing to rows of a tensor that is sharded on them has no effect, and no error. Expected: [5.0, 2.0, 0.0, 0.0]."""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    x = distribute_tensor(torch.arange(1.0, 5.0), init_device_mesh("cpu", (2,)), [Shard(0)])
    x[0] = 5.0
    x[2:].zero_()
    full = x.full_tensor()
    if rank == 0:
        print(full.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
