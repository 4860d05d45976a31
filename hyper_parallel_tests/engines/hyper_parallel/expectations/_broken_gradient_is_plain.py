"""The gradient of a distributed parameter is a plain tensor of its part, without mesh and placements."""

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    parameter = torch.nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
    (parameter * 2).to_local().sum().backward()
    print(f"expected a DTensor, got {type(parameter.grad).__name__} of {tuple(parameter.grad.shape)}")
    dist.destroy_process_group()
