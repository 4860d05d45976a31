"""In a world of one rank shard_module returns None, not the model."""

import torch.distributed as dist
from hyper_parallel import init_device_mesh, shard_module
from hyper_parallel.core.placement_types import Shard
from hyper_parallel.core.shard.sharding_plan import ShardingPlan
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    found = shard_module(nn.Linear(4, 4), mesh, ShardingPlan(plan={"weight": (Shard(0),)}))
    print(f"expected the layer, got {found}")
    dist.destroy_process_group()
