"""A hook after the accumulation of a distributed tensor's gradient is taken for an operator. Expected: it is called."""

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    param = torch.nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
    try:
        param.register_post_accumulate_grad_hook(lambda one: print("called"))
        param.to_local().sum().backward()
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()
