"""A table of one row divided by rows cannot be trained: its update in place is refused. Expected: a row."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    table = parallelize_module(nn.Embedding(1, 4), mesh, RowwiseParallel(input_layouts=Replicate()))
    table(torch.zeros(3, dtype=torch.int64)).sum().backward()
    torch.optim.SGD(table.parameters(), lr=0.1).step()
    print(table.weight.full_tensor())
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
