"""custom_shard takes placements of a mesh of other dimensions, and a distributed tensor by name."""

import torch
import torch.distributed as dist
from hyper_parallel import custom_shard, init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Replicate
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh, whole = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), (Replicate(),)
    given = distribute_tensor(torch.ones(4, 4), mesh, whole)
    for outputs, call in ((2 * whole, {}), ((), {}), (whole, {"other": given})):
        function = custom_shard(lambda one, other=1: one * other, mesh, (outputs,), (whole,))
        try:
            print(f"expected an error about {outputs} or {list(call)}, got {function(given, **call).placements}")
        except Exception as error:
            print(f"expected an error about {outputs} or {list(call)}, got {type(error).__name__}: {error}")
    dist.destroy_process_group()
