"""A cumulative sum over a sharded last dimension, called -1, starts anew on each rank. Expected: 1, 3, 6, 10 twice."""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.arange(1.0, 5.0), mesh, [Shard(0)])
    by_number, from_the_end = x.cumsum(0).full_tensor(), x.cumsum(-1).full_tensor()
    if rank == 0:
        print(by_number.tolist(), from_the_end.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
