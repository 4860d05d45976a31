"""A plan's layout by axis names divides the first dimension, whichever stands in the place of the name."""

import torch.distributed as dist
from hyper_parallel import init_device_mesh, shard_module
from hyper_parallel.core.shard.sharding_plan import ShardingPlan
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for names in (("tp", "None"), ("None", "tp"), ("dp", "tp")):
        try:
            weight = shard_module(nn.Linear(4, 4), mesh, ShardingPlan(plan={"weight": names})).weight
            print(f"{names}: {weight.placements}")
        except ValueError as error:
            print(f"{names}: ValueError: {error}")
    dist.destroy_process_group()
