"""Two mesh dimensions cannot divide one tensor dimension by placements, although they can by a layout."""

import torch
import torch.distributed as dist
from hyper_parallel import Layout, init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for axes in (("dp", "tp"), ("tp", "dp")):
        layout = Layout((2, 2), ("dp", "tp"))(axes, "None")
        print(f"layout of {axes}: tensor map {layout.tensor_map}, placements {layout.placements}")
    try:
        print(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(0)]).to_local().shape)
    except ValueError as error:
        print(f"expected a part of 1 x 4, got ValueError: {error}")
    dist.destroy_process_group()
