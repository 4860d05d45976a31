"""A sum over dim=(), which means all, is that of rank 0; so amax() has a wrong gradient. Expected: 3, and [0, 1]."""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.tensor([1.0, 2.0]), mesh, [Shard(0)]).requires_grad_()
    total = x.detach().sum((), keepdim=True).full_tensor()
    x.amax().backward()
    gradient = x.grad.full_tensor()
    if rank == 0:
        print(total.tolist(), gradient.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
