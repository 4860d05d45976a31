"""A mesh of ranks in another order is the earlier mesh of the same ends, or its groups, sorted, are not found."""

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    for ranks in ((0, 1, 2, 3), (0, 2, 1, 3), (3, 2, 1, 0)):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",), rank_list=ranks)
        print(f"asked for {ranks}, got {mesh.rank_list}")
    try:
        print(distribute_tensor(torch.arange(4), mesh, [Shard(0)]).full_tensor().shape)
    except KeyError as error:
        print(f"expected the full tensor, got KeyError: {error}")
    dist.destroy_process_group()
