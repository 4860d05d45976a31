"""A model whose first forward is under inference_mode cannot train: FSDP2 keeps inference tensors as buffers."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    layer = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,)), reshard_after_forward=True)
    with torch.inference_mode():
        layer(torch.ones(1, 4))
    try:
        layer(torch.ones(1, 4)).sum().backward()
        print(f"rank {rank}: trained")
    except RuntimeError as error:
        print(f"rank {rank}: expected a gradient, got {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
