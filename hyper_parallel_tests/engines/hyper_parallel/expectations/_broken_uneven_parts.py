"""Of a dimension that the ranks do not divide evenly the tail is lost. Expected of 5 rows: shape (5,), part [3, 4]."""

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    for size in (5, 1):
        tensor = distribute_tensor(torch.arange(size), mesh, [Shard(0)])
        print(f"{size} rows: shape {tuple(tensor.shape)}, part of rank 1 {tensor.to_local().tolist()}")
    dist.destroy_process_group()
