"""A tensor that needs a gradient becomes a distributed tensor that is no leaf, so its gradient is lost."""

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    tensor = distribute_tensor(torch.ones(4, requires_grad=True), mesh, [Shard(0)])
    print(f"expected a leaf that needs a gradient, got is_leaf {tensor.is_leaf}, requires_grad {tensor.requires_grad}")
    dist.destroy_process_group()
