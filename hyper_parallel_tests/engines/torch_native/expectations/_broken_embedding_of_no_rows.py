"""An embedding of 5 rows is an error on the last of 4 ranks, which has none, and others wait. Expected: two rows."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (4,))
    weight = distribute_tensor(torch.ones(5, 2), mesh, [Shard(0)])
    try:
        print(rank, F.embedding(distribute_tensor(torch.tensor([0, 0]), mesh, [Replicate()]), weight).full_tensor())
    except RuntimeError as error:
        print(rank, error)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=4)
