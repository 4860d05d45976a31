"""A plan's names have no wildcards; one that is not there is an error without near matches, and part of it is done."""

import torch.distributed as dist
from hyper_parallel import init_device_mesh, shard_module
from hyper_parallel.core.placement_types import Shard
from hyper_parallel.core.shard.sharding_plan import ShardingPlan
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh, rows = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), (Shard(0),)
    for what, plan in {
        "wildcard": ShardingPlan(plan={"*.weight": rows}),
        "unknown parameter": ShardingPlan(plan={"head.bias": rows, "head.wieght": rows}),
        "parameter of a part": ShardingPlan(plan={"weight": rows}),
        "unknown module": ShardingPlan(input_plan={"heda.input": rows}),
        "layout of no dimension": ShardingPlan(plan={"head.weight": ()}),
    }.items():
        model = nn.ModuleDict({"head": nn.Linear(4, 4)})
        try:
            shard_module(model, mesh, plan)
            error = None
        except Exception as found:
            error = found
        done = [name for name, one in model.named_parameters() if hasattr(one, "placements")]
        print(f"{what}: {error!r}; divided all the same: {done}")
    print(f"parameter of a function: {shard_module(print, mesh, ShardingPlan(plan={'weight': rows}))}")
    dist.destroy_process_group()
