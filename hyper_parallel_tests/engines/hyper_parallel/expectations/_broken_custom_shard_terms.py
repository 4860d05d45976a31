"""custom_shard refuses an input that lies as terms of a sum, although in_placements ask for it as it lies."""

import torch
import torch.distributed as dist
from hyper_parallel import custom_shard, init_device_mesh
from hyper_parallel.core.dtensor import DTensor
from hyper_parallel.core.placement_types import Partial
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh, terms = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), (Partial("sum"),)
    given = DTensor.from_local(torch.ones(4, 4), mesh, terms)
    try:
        found = custom_shard(lambda one: 2 * one, mesh, (terms,), (terms,))(given)
        print(f"{found.placements}")
    except ValueError as error:
        print(f"expected a tensor that lies as {terms}, got ValueError: {error}")
    dist.destroy_process_group()
