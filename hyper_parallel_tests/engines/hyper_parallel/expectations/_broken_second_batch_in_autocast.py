"""Gradients of a region's second batch are lost: autocast's copy of a weight is older than what is waited for."""

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
    for module in (*model, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    with torch.autocast("cpu", torch.bfloat16):
        losses = [model(torch.ones(2, 4)).sum() for _ in range(2)]
    for loss in losses:
        loss.backward()
    print(f"rank {rank}: expected 4.0 in every element, got {model[1].bias.grad}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
