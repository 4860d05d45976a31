"""Outputs other than tuples: lists and named tuples become tuples, dicts and dataclasses are refused or left alone."""

from collections import namedtuple

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh, shard_module
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Replicate, Shard
from hyper_parallel.core.shard.sharding_plan import ShardingPlan
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh, rows = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), (Shard(0),)
    whole, named = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()]), namedtuple("Named", "hidden")
    kinds = [(list, lambda x: [x], [rows]), (dict, lambda x: {"hidden": x}, {"hidden": rows}), (named, named, [rows])]
    for kind, make, outputs in kinds:
        for plan in (ShardingPlan(output_plan={"output": outputs}), ShardingPlan(return_local_tensor=[""])):
            module = nn.Module()
            module.forward = make
            try:
                found = shard_module(module, mesh, plan)(whole)
                first = next(iter(found.values() if kind is dict else found))
                print(f"{kind.__name__}: {type(found).__name__} of {type(first).__name__}")
            except ValueError as error:
                print(f"{kind.__name__}: ValueError: {error}")
    dist.destroy_process_group()
