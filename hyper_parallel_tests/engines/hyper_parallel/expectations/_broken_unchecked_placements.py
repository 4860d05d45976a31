"""Placements that cannot be are taken: too many or too few, reductions that there are not or that contradict."""

import torch
import torch.distributed as dist
from hyper_parallel import DTensor, init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh, full = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), torch.ones(4, 4)
    for what, attempt in {
        "one placement for two dimensions": lambda: distribute_tensor(full, mesh, [Shard(0)]),
        "three placements": lambda: distribute_tensor(full, mesh, [Shard(0), Replicate(), Replicate()]),
        "median": lambda: DTensor.from_local(full, mesh, [Partial("median"), Replicate()]).full_tensor(),
        "sum and max": lambda: DTensor.from_local(full, mesh, [Partial("sum"), Partial("max")]).full_tensor(),
    }.items():
        print(f"{what}: expected an error, got {type(attempt()).__name__}")
    dist.destroy_process_group()
