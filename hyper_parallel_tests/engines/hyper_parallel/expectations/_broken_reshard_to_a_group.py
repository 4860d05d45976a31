"""An int for reshard_after_forward is accepted and taken for True: forward leaves parts among all ranks."""

import tempfile

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    layer = fully_shard(nn.Linear(8, 8), mesh=mesh, reshard_after_forward=2)
    layer(torch.ones(1, 8))
    left = layer.weight.to_local().shape[0]
    print(f"rank {rank}: expected 4 of 8 rows, each among 2 ranks, after forward, got {left}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=4)
