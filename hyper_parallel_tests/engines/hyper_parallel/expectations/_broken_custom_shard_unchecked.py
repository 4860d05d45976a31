"""custom_shard with redistribute_inputs=False takes an input as it lies for one that lies as in_placements say."""

import torch
import torch.distributed as dist
from hyper_parallel import custom_shard, init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh, rows = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), (Shard(0),)
    function = custom_shard(torch.relu, mesh, (rows,), (rows,), redistribute_inputs=False)
    found = function(distribute_tensor(torch.ones(4, 4), mesh, [Shard(1)]))
    print(f"expected an error about Shard(1), got {found.placements} of shape {tuple(found.shape)}, not (4, 4)")
    dist.destroy_process_group()
