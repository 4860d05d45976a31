"""A plan for the module itself forgets src_data_rank and takes rank 0's. Expected: rank 1 has [1.0]."""

import tempfile

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    layer = nn.Linear(1, 2, bias=False)
    nn.init.constant_(layer.weight, rank)
    parallelize_module(layer, mesh, {"": ColwiseParallel()}, src_data_rank=None)
    print(f"rank {rank}", layer.weight.detach().to_local().flatten().tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
