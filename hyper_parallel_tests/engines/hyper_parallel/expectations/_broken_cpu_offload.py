"""A module with CPU offload fails in its first forward."""

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from hyper_parallel.platform.torch.fully_shard.utils import CPUOffloadPolicy
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    layer = fully_shard(nn.Linear(4, 4), mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    try:
        print(f"as expected, {tuple(layer(torch.ones(1, 4)).shape)}")
    except AttributeError as error:
        print(f"expected no error, got {error}")
