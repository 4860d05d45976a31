"""A plan cannot be applied again: parameters are refused, and the hooks of inputs and outputs pile up."""

import torch.distributed as dist
from hyper_parallel import init_device_mesh, shard_module
from hyper_parallel.core.placement_types import Shard
from hyper_parallel.core.shard.sharding_plan import ShardingPlan
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh, rows = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), (Shard(0),)
    layer = nn.Linear(4, 4)
    for _ in range(2):
        shard_module(layer, mesh, ShardingPlan(input_plan={"input": rows}, output_plan={"output": rows}))
        print(f"hooks: {len(layer._forward_pre_hooks)} before, {len(layer._forward_hooks)} behind")
    try:
        for _ in range(2):
            shard_module(layer, mesh, ShardingPlan(plan={"weight": rows}))
    except ValueError as error:
        print(f"ValueError: {error}")
    dist.destroy_process_group()
