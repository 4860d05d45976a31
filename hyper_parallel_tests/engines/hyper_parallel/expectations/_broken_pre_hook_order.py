"""A pre-hook that was registered before fully_shard runs before the gather and sees shards."""

import tempfile

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    layer = nn.Linear(4, 4)
    layer.register_forward_pre_hook(lambda one, _: print(f"rank {rank}: expected (4, 4), got {one.weight.data.shape}"))
    fully_shard(layer, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    layer(torch.ones(2, 4))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
