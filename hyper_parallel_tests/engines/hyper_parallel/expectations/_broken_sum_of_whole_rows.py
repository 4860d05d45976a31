"""The sum over a dimension that is not divided is taken for a term, and summed over the ranks in the end."""

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    tensor = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    print(f"sum(0): expected Partial, got {tensor.sum(0).placements}")
    print(f"sum(1): expected Shard(0), got {tensor.sum(1).placements}")
    dist.destroy_process_group()
