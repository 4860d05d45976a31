"""FSDP2 lets an asynchronous unshard outlive reshard(): the next unshard gets the old parameters from it."""

import tempfile

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    layer = nn.Linear(4, 4, bias=False)
    nn.init.ones_(layer.weight)
    fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    layer.unshard(async_op=True)
    layer.reshard()
    layer.weight.detach().to_local().fill_(3)
    layer.unshard()
    print(f"rank {rank}: expected 3.0 in every element, got {layer.weight.detach().unique().tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
