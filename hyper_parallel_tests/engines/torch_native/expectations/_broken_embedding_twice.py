"""An embedding of a sharded vocabulary that is used twice ends in a bare AssertionError. Expected: two shapes."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    weight = distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
    tokens = distribute_tensor(torch.tensor([0, 3]), mesh, [Replicate()])
    first, second = F.embedding(tokens, weight), F.embedding(tokens, weight)
    print(first.full_tensor().shape, (first + second**2).full_tensor().shape)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
