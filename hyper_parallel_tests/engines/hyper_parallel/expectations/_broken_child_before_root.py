"""A child that runs before its root is not noticed when the root runs."""

import tempfile

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for module in (model[0], model):
        fully_shard(module, mesh=mesh)
    inputs = torch.ones(2, 4)
    model[0](inputs)
    print(f"rank {rank}: expected an error, got {tuple(model(inputs).shape)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
