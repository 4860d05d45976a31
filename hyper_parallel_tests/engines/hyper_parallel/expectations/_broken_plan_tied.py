"""A parameter under two names is two after a plan has divided one of them."""

import torch.distributed as dist
from hyper_parallel import init_device_mesh, shard_module
from hyper_parallel.core.placement_types import Shard
from hyper_parallel.core.shard.sharding_plan import ShardingPlan
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "second": nn.Linear(4, 4)})
    model["second"].weight = model["first"].weight
    shard_module(model, mesh, ShardingPlan(plan={"first.weight": (Shard(0),)}))
    print(f"still one: {model['first'].weight is model['second'].weight}")
    dist.destroy_process_group()
