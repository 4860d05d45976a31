"""The mean loss of a sharded batch is the mean of the ranks' means, whatever is ignored there. Expected: 1.5."""

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
    scores = distribute_tensor(-torch.arange(8.0).reshape(4, 2) / 2, mesh, [Shard(0)])
    targets = distribute_tensor(torch.tensor([1, 0, -100, 0]), mesh, [Shard(0)])
    loss = F.nll_loss(scores, targets).full_tensor()
    if rank == 0:
        print(loss.item(), "by hand", (0.5 + 1 + 3) / 3)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
