"""The maximum of a DTensor is an error on a rank whose shard is empty, and others wait for it. Expected: 4.0."""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    row = distribute_tensor(torch.arange(1.0, 5.0).reshape(1, 4), init_device_mesh("cpu", (2,)), [Shard(0)])
    try:
        print(rank, row.max().full_tensor().item())
    except RuntimeError as error:
        print(rank, error)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
