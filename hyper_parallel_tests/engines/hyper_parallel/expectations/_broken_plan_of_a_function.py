"""return_local_tensor has no effect on a function, and what cannot be called is taken for one."""

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh, shard_module
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Shard
from hyper_parallel.core.shard.sharding_plan import ShardingPlan
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh, rows = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), (Shard(0),)
    given = distribute_tensor(torch.ones(4, 4), mesh, rows)
    found = shard_module(lambda one: one, mesh, ShardingPlan(return_local_tensor=[""]))(given)
    print(f"expected a Tensor, got a {type(found).__name__}")
    found = shard_module(torch.ones(4, 4), mesh, ShardingPlan(input_plan={"input": rows}))
    print(f"expected a TypeError, got a {type(found).__name__}")
    dist.destroy_process_group()
