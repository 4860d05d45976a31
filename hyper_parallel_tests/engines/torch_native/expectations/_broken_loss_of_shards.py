"""Gradients of a mean squared error are twice as large on two ranks; uneven parts count alike. Expected: 0.5, 3.0."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    zeros = distribute_tensor(torch.zeros(4), mesh, [Shard(0)]).requires_grad_()
    F.mse_loss(zeros, distribute_tensor(-torch.ones(4), mesh, [Shard(0)])).backward()
    uneven = distribute_tensor(torch.tensor([0.0, 0.0, 3.0]), mesh, [Shard(0)])
    gradient, loss = zeros.grad.full_tensor(), F.mse_loss(uneven, uneven * 0).full_tensor()
    if rank == 0:
        print(gradient.tolist(), loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
