"""A replicated parameter on divided inputs has this rank's term of the gradient, so that ranks train apart."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh, shard_module
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Replicate, Shard
from hyper_parallel.core.shard.sharding_plan import ShardingPlan
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh, layer = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)), nn.Module()
    layer.weight = nn.Parameter(torch.ones(2, 1))
    shard_module(layer, mesh, ShardingPlan(plan={"weight": (Replicate(),)}))
    rows = distribute_tensor(torch.tensor([[1.0, 1.0], [3.0, 3.0]]), mesh, [Shard(0)])
    torch.matmul(rows, layer.weight).to_local().sum().backward()
    print(f"rank {rank}: expected the gradient [[4.0], [4.0]], got {layer.weight.grad.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)
