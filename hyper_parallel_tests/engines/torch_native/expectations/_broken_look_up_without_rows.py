"""Looking up in a table of five rows on four ranks fails on the last, which has none. Expected: five vectors each."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4)
    table = nn.Embedding.from_pretrained(torch.ones(5, 2))
    style = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(table, init_device_mesh("cpu", (4,)), style)
    print(rank, len(table.weight.to_local()), "rows:", table(torch.arange(5)).tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=4)
