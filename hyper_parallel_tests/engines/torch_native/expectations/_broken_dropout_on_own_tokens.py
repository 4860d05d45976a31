"""Sequence-parallel dropout on CPU drops the same places of both ranks' tokens. Expected: False."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    layer = parallelize_module(nn.Dropout(0.5), mesh, SequenceParallel())
    first, second = layer(torch.ones(1, 50, 4)).full_tensor().chunk(2, 1)
    if rank == 0:
        print(torch.equal(first, second))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
