"""Layouts reach arguments by name only by a dict and beside defaults, and each distributed argument must have one."""

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh, shard_module
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Replicate, Shard
from hyper_parallel.core.shard.sharding_plan import ShardingPlan
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

Plain, Defaults = type("Plain", (nn.Module,), {}), type("Defaults", (nn.Module,), {})
Plain.forward = lambda self, left, right: (left.placements, right.placements)
Defaults.forward = lambda self, left, right=None: (left.placements, right.placements)

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh, rows = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), (Shard(0),)
    whole = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])
    both, unknown = {"left": rows, "right": rows}, {"left": rows, "rihgt": rows}
    for make, inputs in [(Plain, both), (Defaults, [rows, rows]), (Defaults, unknown), (Defaults, [None, rows])]:
        try:
            model = shard_module(make(), mesh, ShardingPlan(input_plan={"input": inputs}))
            print(f"{inputs}: {model(whole, right=whole)}")
        except Exception as error:
            print(f"{inputs}: {type(error).__name__}: {error}")
    dist.destroy_process_group()
