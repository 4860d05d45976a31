"""A gradient that lacks the all-reduce over replicas becomes `grad`, and the next all-reduce leaves it out."""

import tempfile

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4)
    layer = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    for all_reduce in (False, True):
        layer.set_requires_all_reduce(all_reduce)
        layer(torch.full((1, 4), rank + 1.0)).sum().backward()
        grad = layer.weight.grad.to_local()[0, 0]
        print(f"rank {rank}: expected {'5.0' if all_reduce else 'no gradient yet'}, got {grad}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=4)
