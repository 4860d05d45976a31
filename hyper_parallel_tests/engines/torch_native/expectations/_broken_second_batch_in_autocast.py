"""FSDP2 loses gradients of a region's second batch: autocast's copy of a weight is older than what FSDP2 waits for."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for module in (*model, model):
        fully_shard(module)
    with torch.autocast("cpu", torch.bfloat16):
        losses = [model(torch.ones(2, 4)).sum() for _ in range(2)]
    for loss in losses:
        loss.backward()
    print(f"rank {rank}: expected 4.0 in every element, got {model[1].bias.grad.to_local().tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
